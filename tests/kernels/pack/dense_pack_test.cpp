#include "kernels/pack/dense_pack.h"

#include <doctest/doctest.h>

#include <random>
#include <vector>

#include "formats/e4m3.h"
#include "formats/layouts/gate_up_interleaved8.h"
#include "formats/layouts/layout_ops.h"
#include "tests/support/weights/layout_reference.h"

namespace dense_pack_test {

using namespace twofour;
using Layout = GateUpInterleaved8;

namespace {

struct Matrix {
  int64_t n, k;
  std::vector<uint8_t> codes, scales;
  std::vector<DenseGroup> groups() const {
    std::vector<DenseGroup> out(static_cast<size_t>(n * k / kGroup));
    for (size_t g = 0; g < out.size(); ++g) {
      for (size_t j = 0; j < 8; ++j) out[g].codes[j] = codes[8 * g + j];
      out[g].scale = scales[g];
    }
    return out;
  }
};

Matrix random_matrix(int64_t n, int64_t k, uint32_t seed) {
  std::mt19937 random(seed);
  Matrix m{n, k, std::vector<uint8_t>(static_cast<size_t>(n * k / 2)),
           std::vector<uint8_t>(static_cast<size_t>(n * k / kGroup))};
  for (uint8_t& byte : m.codes) byte = static_cast<uint8_t>(random());
  for (uint8_t& byte : m.scales) byte = static_cast<uint8_t>(random() % kE4m3Nan);
  return m;
}

/// Packs rows [0, split) and [split, n) in two calls and holds them against the map, guards and padding
/// included.
void check_equal(Shape shape, int64_t split) {
  const Matrix m = random_matrix(shape.n, shape.k, static_cast<uint32_t>(shape.n * 1000 + shape.k));
  std::vector<std::vector<uint8_t>> got, want;
  std::vector<uint8_t*> pointers;
  for (int p = 0; p < Layout::part_count; ++p) {
    const auto bytes = static_cast<size_t>(Layout::part(p, shape).bytes());
    got.emplace_back(bytes + 64, uint8_t{0});
    std::fill(got.back().end() - 64, got.back().end(), uint8_t{0xA5});
    want.emplace_back(bytes);
    pack_part<Layout>(p, shape, m.groups(), want.back());
    want.back().resize(bytes + 64, uint8_t{0xA5});
  }
  for (auto& part : got) pointers.push_back(part.data());
  const auto rows = [&](int64_t first, int64_t count) {
    return DenseRows{m.codes.data() + first * shape.k / 2,
                     m.scales.data() + first * shape.groups(),
                     shape.k / 2,
                     shape.groups(),
                     count,
                     shape.k};
  };
  CHECK(dense_pack<Layout>(rows(0, split), shape, 0, pointers) == 0);
  CHECK(dense_pack<Layout>(rows(split, shape.n - split), shape, split, pointers) == 0);
  for (size_t p = 0; p < got.size(); ++p) CHECK(got[p] == want[p]);
}

}  // namespace

TEST_CASE("the packer of dense layouts equals the map for any shape") {
  for (const int64_t n : {16, 48, 96, 128, 144, 272}) {
    for (const int64_t k : {16, 48, 64, 80, 96, 1040}) {
      for (const bool gated : {false, true}) {
        CAPTURE(n);
        CAPTURE(k);
        CAPTURE(gated);
        check_equal({1, n, k, gated}, gated ? n / 2 : n / 3);
      }
    }
  }
  for (const int64_t n : {1, 3, 7, 65, 129}) check_equal({1, n, 48, false}, n / 2);
}

TEST_CASE("bad block scales are counted where they stand") {
  const Shape shape{1, 16, 64, true};
  Matrix m = random_matrix(16, 64, 1);
  for (const size_t i : {0, 17, 63}) m.scales[i] = 0x7F;
  m.scales[5] = 0x80;
  std::vector<uint8_t> weight(16 * 32), scale(128 * 4);
  uint8_t* parts[] = {weight.data(), scale.data()};
  CHECK(dense_pack<Layout>({m.codes.data(), m.scales.data(), 32, 4, 16, 64}, shape, 0, parts) == 4);
}

TEST_CASE("gate and up rows alternate eight by eight") {
  // One group a row; the first code byte of a row tells which row it was.
  const Shape shape{1, 32, 16, true};
  Matrix m = random_matrix(32, 16, 2);
  for (size_t n = 0; n < 32; ++n) m.codes[8 * n] = static_cast<uint8_t>(n);
  std::vector<uint8_t> weight(32 * 8), scale(128 * 4);
  uint8_t* parts[] = {weight.data(), scale.data()};
  dense_pack<Layout>({m.codes.data(), m.scales.data(), 8, 1, 32, 16}, shape, 0, parts);
  const int expected[32] = {0, 1, 2,  3,  4,  5,  6,  7,  16, 17, 18, 19, 20, 21, 22, 23,
                            8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31};
  for (size_t r = 0; r < 32; ++r) CHECK(weight[8 * r] == expected[r]);
}

}  // namespace dense_pack_test
