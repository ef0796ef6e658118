#include "kernels/staged_pack.h"

#include <algorithm>
#include <type_traits>

#include "kernels/pack/dense_pack.h"
#include "tests/support/device/device.h"
#include "tests/support/device/device_experts.h"

using namespace twofour;
using namespace twofour::cuda;

namespace {

/// By plain loops.
ScaleTally tally_of(const DenseRows& rows, int64_t n0, int64_t count) {
  ScaleTally tally{};
  for (int64_t n = n0; n < n0 + count; ++n) {
    for (int64_t g = 0; g < rows.k / 16; ++g) {
      const uint8_t scale = rows.scales[n * rows.scales_pitch + g];
      ++tally.groups[scale];
      for (int64_t q = 0; q < 4; ++q) {
        std::vector<int> halves;
        for (int64_t i = 0; i < 4; ++i)
          halves.push_back(
              e2m1_halves(rows.codes[n * rows.codes_pitch + g * 8 + q * 2 + i / 2] >> 4 * (i % 2) & 7u));
        std::sort(halves.begin(), halves.end());
        for (const int h : halves) tally.energy[scale] += static_cast<uint64_t>(h * h);
        tally.kept[scale] += static_cast<uint64_t>(halves[3] * halves[3] + halves[2] * halves[2]);
        tally.tied += halves[1] == halves[2];
      }
    }
  }
  return tally;
}

/// Packs rows of `dense` strip by strip, every second one where `step` is 2, those from the middle on folded.
template <class Layout>
void check_packed(StagedPacker& packer, int64_t n, int64_t k, int64_t strip, bool gated, int64_t step) {
  CAPTURE(std::string(Layout::name));
  CAPTURE(n);
  CAPTURE(k);
  CAPTURE(strip);
  DenseExperts dense(1, n * step, k, static_cast<unsigned>(n + k));
  std::mt19937 random(3);
  for (uint8_t& byte : dense.codes)
    if (random() % 3 == 0) byte = static_cast<uint8_t>((random() % 2 * 8) | (random() % 2 * 8 + 3) << 4);
  dense.scales[0] = 0x7F;  // counted like any other
  std::array<uint8_t, 256> fold;
  for (unsigned i = 0; i < 256; ++i) fold[i] = static_cast<uint8_t>(i * 7 + 3);

  const Shape shape{1, n, k, gated};
  packer.begin(shape);
  for (int64_t n0 = 0; n0 < n; n0 += strip) {
    const int64_t count = std::min(strip, n - n0), bytes = count * step * (k / 2 + k / 16);
    uint8_t* codes = packer.stage(static_cast<size_t>(bytes));
    std::fill_n(codes, bytes, uint8_t{0xEE});
    uint8_t* scales = codes + count * step * k / 2;
    std::copy_n(dense.codes.begin() + n0 * step * k / 2, count * step * k / 2, codes);
    std::copy_n(dense.scales.begin() + n0 * step * k / 16, count * step * k / 16, scales);
    packer.add({codes, scales, step * k / 2, step * k / 16, count, k}, n0);
  }
  const int64_t half = gated ? n / 2 : n / 3;
  const TalliedRows rows[] = {{0, half}, {half, n - half, &fold}};
  ScaleTally tallies[2];
  packer.finish(rows, tallies);

  DenseRows all = dense.rows(0);
  all.n = n, all.codes_pitch *= step, all.scales_pitch *= step;
  for (int i = 0; i < 2; ++i) {
    const ScaleTally want = tally_of(all, rows[i].n0, rows[i].count);
    CHECK(tallies[i].groups == want.groups);
    CHECK(tallies[i].energy == want.energy);
    CHECK(tallies[i].kept == want.kept);
    CHECK(tallies[i].tied == want.tied);
  }
  std::vector<uint8_t> folded(dense.scales);
  for (size_t i = static_cast<size_t>(half * step * k / 16); i < folded.size(); ++i)
    folded[i] = fold[folded[i]];
  all.scales = folded.data();
  std::vector<std::vector<uint8_t>> want;
  std::vector<uint8_t*> to;
  for (int p = 0; p < Layout::part_count; ++p)
    to.push_back(want.emplace_back(static_cast<size_t>(Layout::part(p, shape).bytes())).data());
  for (size_t p = 0; p < want.size(); ++p) to[p] = want[p].data();
  if constexpr (std::is_same_v<typename Layout::Atom, SparseGroup>) {
    twofour::prune_pack<Layout>(all, shape, 0, to);
  } else {
    twofour::dense_pack<Layout>(all, shape, 0, to);
  }
  for (int p = 0; p < Layout::part_count; ++p) {
    CAPTURE(p);
    const auto got = packer.part(p);
    CHECK(std::equal(got.begin(), got.end(), want[static_cast<size_t>(p)].begin(),
                     want[static_cast<size_t>(p)].end()));
  }
}

}  // namespace

TEST_CASE("staged packing gives the CPU's bytes and exact tallies, strip by strip") {
  if (no_gpu()) return;
  for_each_layout([&]<class L>() {
    const bool gated = L::pairs_gate_and_up;
    StagedPacker packer(L::name);  // later matrices meet what earlier ones left in its memory
    check_packed<L>(packer, 512, 1024, 96, gated, 1);
    for (const int64_t n : {16, 144, 272}) {
      for (const int64_t k : {16, 272, 1040}) {
        check_packed<L>(packer, n, k, n, gated, 1);
        check_packed<L>(packer, n, k, 8, gated, 1);
        check_packed<L>(packer, n, k, 24, gated, 2);
      }
    }
    check_packed<L>(packer, 656, 512, 100, gated, 2);
    if (gated) return;
    check_packed<L>(packer, 1, 16, 1, false, 1);
    check_packed<L>(packer, 131, 80, 7, false, 1);
  });
}
