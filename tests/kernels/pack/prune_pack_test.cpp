#include "kernels/pack/prune_pack.h"

#include <doctest/doctest.h>
#include <stdlib.h>

#include <algorithm>
#include <array>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "formats/e4m3.h"
#include "formats/error.h"
#include "formats/layouts/layout_ops.h"
#include "formats/layouts/layouts.h"
#include "kernels/pack/prune_pack_driver.h"
#include "tests/support/weights/layout_reference.h"

namespace prune_pack_test {

using namespace twofour;

namespace {

/// Rows of 8 k: comp of the even quad (N), comp of the odd quad (N), meta (N), scale (N). A scale covers two
/// rows and is stored in both, so this map has what KMajorPlanes lacks: sections of one row and copies.
struct TwoCopies {
  using Atom = SparseGroup;
  static constexpr int part_count = 1;
  static constexpr Part part(int, Shape s) { return {"packed", DType::kU8, s.k / 8, 4 * s.n}; }
  static constexpr Source source(int, Shape s, Place at) {
    const int half = static_cast<int>(at.row % 2), section = static_cast<int>(at.col / s.n);
    const int byte = section < 2 ? 2 * half + section : section == 2 ? 4 + half : 6;
    return {at.e, at.col % s.n, at.row / 2, byte};
  }
  static constexpr int copies(int byte) { return byte == 6 ? 2 : 1; }
  static constexpr Stored place(Shape shape, Source s, int copy = 0) {
    const int half = s.byte < 4 ? s.byte / 2 : s.byte < 6 ? s.byte - 4 : copy;
    const int section = s.byte < 4 ? s.byte % 2 : s.byte < 6 ? 2 : 3;
    return {0, {s.e, s.group * 2 + half, section * shape.n + s.n}};
  }
};

/// A dense matrix whose buffers end with its last row, so that a sanitizer sees every read past it.
struct Matrix {
  std::vector<uint8_t> codes, scales;
  DenseRows rows;

  Matrix(int64_t n, int64_t k, int64_t slack = 0)
      : codes(static_cast<size_t>(n * (k / 2 + slack) - slack)),
        scales(static_cast<size_t>(n * (k / 16 + slack) - slack)),
        rows{codes.data(), scales.data(), k / 2 + slack, k / 16 + slack, n, k} {}
  Matrix(const Matrix&) = delete;
};

enum class Fill { any, zeros_and_ties, one_scale, bad_scales };

void fill(Matrix& matrix, Fill kind, unsigned seed) {
  std::mt19937 random(seed);
  static constexpr std::array<uint8_t, 4> kFew = {0x0, 0x8, 0x3, 0xB};
  for (uint8_t& byte : matrix.codes) {
    byte = static_cast<uint8_t>(random());
    if (kind == Fill::zeros_and_ties) byte = static_cast<uint8_t>(kFew[byte & 3] | kFew[byte >> 6] << 4);
  }
  for (uint8_t& byte : matrix.scales) {
    byte = static_cast<uint8_t>(random() % 0x7F);
    if (kind == Fill::one_scale) byte = 0x7E;
    if (kind == Fill::bad_scales && random() % 3 == 0) byte = static_cast<uint8_t>(0x7F + random() % 0x81);
  }
}

/// The parts of one expert between guards, all of it filled with a byte that packing must leave alone
/// elsewhere.
template <class Layout>
struct Parts {
  static constexpr size_t kGuard = 64;
  std::vector<std::vector<uint8_t>> buffers;
  std::vector<std::span<uint8_t>> guarded;  ///< each part and its guards
  std::vector<uint8_t*> pointers;

  /// `misalignment` is the distance of every part from a multiple of 64 bytes.
  explicit Parts(Shape shape, size_t misalignment = 0) {
    for (int p = 0; p < Layout::part_count; ++p) {
      const size_t bytes = static_cast<size_t>(Layout::part(p, shape).bytes()) + 2 * kGuard;
      std::vector<uint8_t>& buffer = buffers.emplace_back(bytes + 128, uint8_t{0xA5});
      const size_t begin = 64 - reinterpret_cast<uintptr_t>(buffer.data()) % 64 + misalignment;
      guarded.push_back(std::span(buffer).subspan(begin, bytes));
      pointers.push_back(guarded.back().data() + kGuard);
    }
  }
  Parts(const Parts&) = delete;

  bool operator==(const Parts& other) const {
    return std::equal(guarded.begin(), guarded.end(), other.guarded.begin(),
                      [](auto a, auto b) { return std::equal(a.begin(), a.end(), b.begin(), b.end()); });
  }
};

template <class Layout>
void check_equal(const Matrix& matrix, Shape shape, int64_t n0, Isa isa, Stores stores,
                 size_t misalignment = 0) {
  Parts<Layout> expected(shape), packed(shape, misalignment);
  const PruneStats expected_stats = prune_pack_reference<Layout>(matrix.rows, shape, n0, expected.pointers);
  const PruneStats stats = prune_pack<Layout>(matrix.rows, shape, n0, packed.pointers, isa, stores);
  INFO(isa_name(isa), " n ", matrix.rows.n, " of ", shape.n, " from ", n0, " k ", shape.k, " streaming ",
       stores == Stores::streaming, " misalignment ", misalignment);
  CHECK(packed == expected);
  CHECK(stats == expected_stats);
}

constexpr int64_t kOddRows[] = {1, 3, 4, 7, 8, 63, 64, 65, 130, 257};
constexpr int64_t kOddInputs[] = {16, 32, 48, 64, 240, 256, 272, 1040};

}  // namespace

TEST_CASE("a quad keeps its two largest magnitudes where the layout says") {
  // Quad 0: 1, 6, -6, 0.5 keeps k = 1, 2. Quad 1: -0, 0, 0, 0 is a tie and keeps k = 0, 1. Quad 2: 3, 0, 0,
  // -0.5 keeps k = 0, 3. Quad 3: 1, 2, -2, 1 keeps k = 1, 2.
  const uint8_t codes[] = {0x72, 0x1F, 0x08, 0x00, 0x05, 0x90, 0x42, 0x2C};
  const uint8_t scale = 0x38;  // 1.0, which is 512 units
  const DenseRows rows{codes, &scale, 8, 1, 1, 16};
  for (const Isa isa : available_isas()) {
    CAPTURE(isa_name(isa));
    uint8_t comp[4] = {}, meta[2] = {}, scales[1] = {};
    uint8_t* const parts[] = {comp, meta, scales};
    const PruneStats stats = prune_pack<KMajorPlanes>(rows, {1, 1, 16}, 0, parts, isa);
    CHECK(std::to_array(comp) == std::to_array<uint8_t>({0xF7, 0x08, 0x95, 0xC4}));
    CHECK(std::to_array(meta) == std::to_array<uint8_t>({0x49, 0x9C}));
    CHECK(scales[0] == 0x38);
    CHECK(stats.quads == 4);
    CHECK(stats.tied == 1);
    CHECK(stats.bad_scales == 0);
    // Squares of halves: 4 + 144 + 144 + 1, 0, 36 + 1 and 4 + 16 + 16 + 4.
    CHECK(stats.energy == 370u * 512 * 512);
    CHECK(stats.kept_energy == (288u + 0 + 37 + 32) * 512 * 512);
  }
}

TEST_CASE("all 65,536 quads are selected by the rule, on every instruction set") {
  constexpr int64_t n = 64, k = 4096, quads = k / 4;
  Matrix matrix(n, k);
  for (size_t quad = 0; quad < 65536; ++quad) {
    matrix.codes[2 * quad] = static_cast<uint8_t>(quad);
    matrix.codes[2 * quad + 1] = static_cast<uint8_t>(quad >> 8);
  }
  for (const Isa isa : available_isas()) {
    CAPTURE(isa_name(isa));
    std::vector<uint8_t> comp(n * quads), meta(n * quads / 2), scale(n * quads / 4);
    uint8_t* const parts[] = {comp.data(), meta.data(), scale.data()};
    const PruneStats stats = prune_pack<KMajorPlanes>(matrix.rows, {1, n, k}, 0, parts, isa);
    uint64_t wrong = 0, tied = 0;
    for (int64_t quad = 0; quad < 65536; ++quad) {
      const int64_t row = quad / quads, q = quad % quads;
      const Quad24 expected = select_2_4(static_cast<unsigned>(quad));
      const int nibble = meta[static_cast<size_t>(q / 2 * n + row)] >> (q % 2 * 4) & 15;
      wrong += comp[static_cast<size_t>(q * n + row)] != expected.comp || nibble != expected.meta;
      tied += is_tied_2_4(static_cast<unsigned>(quad));
    }
    CHECK(wrong == 0);
    CHECK(stats.tied == tied);
    CHECK(stats.quads == 65536);
  }
}

TEST_CASE("every instruction set equals the reference on odd shapes, bytes and statistics") {
  unsigned seed = 0;
  for (const int64_t n : kOddRows) {
    for (const int64_t k : kOddInputs) {
      Matrix matrix(n, k);
      fill(matrix, std::array{Fill::any, Fill::zeros_and_ties, Fill::bad_scales}[seed % 3], seed);
      ++seed;
      for (const Isa isa : available_isas())
        check_equal<KMajorPlanes>(matrix, {1, n, k}, 0, isa, Stores::cached);
    }
  }
}

TEST_CASE("rows go to n0 and leave all other bytes alone, whatever the pitch and the alignment") {
  unsigned seed = 100;
  for (const int64_t n : {1, 64, 65, 200}) {
    for (const int64_t n0 : {0, 1, 63, 64, 192}) {
      for (const size_t misalignment : {0, 1, 40}) {
        Matrix matrix(n, 272, 1 + seed % 100);
        fill(matrix, Fill::bad_scales, ++seed);
        const Shape shape{1, (n0 + n + 70) / 64 * 64, 272};
        for (const Isa isa : available_isas()) {
          for (const Stores stores : {Stores::cached, Stores::streaming}) {
            check_equal<KMajorPlanes>(matrix, shape, n0, isa, stores, misalignment);
          }
        }
      }
    }
  }
}

TEST_CASE("streaming stores write the same bytes as cached ones") {
  unsigned seed = 200;
  for (const int64_t n : {64, 128, 129, 320, 1000}) {
    for (const int64_t k : {16, 256, 2048, 2880}) {
      Matrix matrix(n, k);
      fill(matrix, Fill::any, ++seed);
      for (const Isa isa : available_isas())
        check_equal<KMajorPlanes>(matrix, {1, n, k}, 0, isa, Stores::streaming);
    }
  }
}

TEST_CASE("a row longer than the scratch is packed in pieces") {
  for (const int64_t k : {8192, 8192 + 16, 3 * 8192 - 48}) {
    Matrix matrix(67, k);
    fill(matrix, Fill::any, static_cast<unsigned>(k));
    for (const Isa isa : available_isas())
      check_equal<KMajorPlanes>(matrix, {1, 67, k}, 0, isa, Stores::streaming);
  }
}

TEST_CASE("pieces of K cover each group once, in order") {
  for (int64_t groups = 0; groups < 2000; ++groups) {
    int64_t next = 0;
    for (const KChunk chunk : k_chunks(groups)) {
      REQUIRE(chunk.g0 == next);
      REQUIRE(chunk.groups > 0);
      REQUIRE(chunk.groups <= 512);
      next += chunk.groups;
    }
    REQUIRE(next == groups);
  }
}

TEST_CASE("another layout, with sections and copies, needs no code in the packer") {
  REQUIRE(!find_coverage_gap<TwoCopies>({2, 5, 48}));
  unsigned seed = 300;
  for (const int64_t n : {1, 8, 64, 130, 192}) {
    for (const int64_t k : kOddInputs) {
      Matrix matrix(n, k);
      fill(matrix, Fill::bad_scales, ++seed);
      for (const Isa isa : available_isas()) {
        check_equal<TwoCopies>(matrix, {1, n, k}, 0, isa, Stores::cached);
        check_equal<TwoCopies>(matrix, {1, n + 64, k}, 64, isa, Stores::streaming);
      }
    }
  }
}

TEST_CASE("the reference is what the layout's map makes of pruned atoms") {
  const Shape shape{1, 5, 48};
  Matrix matrix(shape.n, shape.k);
  fill(matrix, Fill::zeros_and_ties, 1);
  std::vector<SparseGroup> atoms;
  for (size_t group = 0; group < matrix.scales.size(); ++group) {
    DenseGroup dense;
    std::copy_n(matrix.codes.data() + 8 * group, 8, dense.codes);
    dense.scale = matrix.scales[group];
    atoms.push_back(prune(dense));
  }
  const auto compare = [&]<class Layout>() {
    Parts<Layout> packed(shape);
    prune_pack_reference<Layout>(matrix.rows, shape, 0, packed.pointers);
    for (int p = 0; p < Layout::part_count; ++p) {
      std::vector<uint8_t> expected(static_cast<size_t>(Layout::part(p, shape).bytes()));
      pack_part<Layout>(p, shape, atoms, expected);
      CHECK(std::equal(expected.begin(), expected.end(), packed.pointers[static_cast<size_t>(p)]));
    }
  };
  compare.operator()<KMajorPlanes>();
  compare.operator()<TwoCopies>();
}

TEST_CASE("each of the 256 scale bytes weighs what E4M3 says, and the bad ones are counted") {
  Matrix matrix(1, 256 * 16);
  for (size_t i = 0; i < 256; ++i) matrix.scales[i] = static_cast<uint8_t>(i);
  for (size_t i = 0; i < matrix.codes.size(); ++i) matrix.codes[i] = static_cast<uint8_t>(37 * i);
  for (const Isa isa : available_isas()) {
    for (size_t byte = 0; byte < 256; ++byte) {
      const DenseRows one{matrix.codes.data() + 8 * byte, matrix.scales.data() + byte, 8, 1, 1, 16};
      Parts<KMajorPlanes> parts({1, 1, 16});
      const PruneStats stats = prune_pack<KMajorPlanes>(one, {1, 1, 16}, 0, parts.pointers, isa);
      double energy = 0;
      for (int k = 0; k < 16; ++k) {
        const unsigned code = one.codes[k / 2] >> (k % 2 * 4) & 15u;
        const double weight =
            byte < 0x7F ? e2m1_to_float(code) * e4m3_to_float(static_cast<unsigned>(byte)) : 0;
        energy += weight * weight;
      }
      REQUIRE(static_cast<double>(stats.energy) == energy * 0x1p20);
      REQUIRE(stats.bad_scales == (byte >= 0x7F ? 1 : 0));
    }
    check_equal<KMajorPlanes>(matrix, {1, 1, 4096}, 0, isa, Stores::cached);
  }
}

TEST_CASE("the largest weights overflow no sum") {
  Matrix matrix(70, 16384);
  fill(matrix, Fill::one_scale, 1);
  std::fill(matrix.codes.begin(), matrix.codes.end(), uint8_t{0x7F});
  const unsigned __int128 weight = static_cast<unsigned __int128>(12u * 229376) * (12u * 229376);
  for (const Isa isa : available_isas()) {
    Parts<KMajorPlanes> parts({1, 70, 16384});
    const PruneStats stats = prune_pack<KMajorPlanes>(matrix.rows, {1, 70, 16384}, 0, parts.pointers, isa);
    CHECK(stats.energy == weight * 70 * 16384);
    CHECK(stats.kept_energy == weight * 70 * 8192);
    CHECK(stats.tied == 70 * 4096);
  }
}

TEST_CASE("no rows, or no inputs, pack to nothing") {
  Matrix matrix(1, 16);
  for (const Isa isa : available_isas()) {
    Parts<KMajorPlanes> parts({1, 4, 16}), untouched({1, 4, 16});
    DenseRows none = matrix.rows;
    none.n = 0;
    CHECK(prune_pack<KMajorPlanes>(none, {1, 4, 16}, 4, parts.pointers, isa) == PruneStats{});
    DenseRows narrow = matrix.rows;
    narrow.k = 0;
    CHECK(prune_pack<KMajorPlanes>(narrow, {1, 4, 0}, 0, parts.pointers, isa) == PruneStats{});
    CHECK(parts == untouched);
  }
}

TEST_CASE("threads pack side by side") {
  constexpr int64_t n = 1024, k = 256, strips = 16;
  Matrix matrix(n, k);
  fill(matrix, Fill::any, 1);
  const Shape shape{1, n, k};
  Parts<KMajorPlanes> expected(shape), packed(shape);
  const PruneStats expected_stats =
      prune_pack_reference<KMajorPlanes>(matrix.rows, shape, 0, expected.pointers);
  std::array<PruneStats, strips> stats;
  const Isa isa = best_isa();
#pragma omp parallel for num_threads(4)
  for (int64_t strip = 0; strip < strips; ++strip) {
    DenseRows rows = matrix.rows;
    rows.n = n / strips;
    rows.codes += strip * rows.n * rows.codes_pitch;
    rows.scales += strip * rows.n * rows.scales_pitch;
    stats[static_cast<size_t>(strip)] =
        prune_pack<KMajorPlanes>(rows, shape, strip * rows.n, packed.pointers, isa, Stores::streaming);
  }
  PruneStats total;
  for (const PruneStats& part : stats) total += part;
  CHECK(packed == expected);
  CHECK(total == expected_stats);
}

namespace {

/// Sets TWOFOUR_ISA for a test, and puts back what was there.
class ForcedIsa {
 public:
  explicit ForcedIsa(const char* value) {
    if (const char* before = getenv("TWOFOUR_ISA")) before_ = std::make_unique<std::string>(before);
    setenv("TWOFOUR_ISA", value, 1);
  }
  ~ForcedIsa() { before_ ? setenv("TWOFOUR_ISA", before_->c_str(), 1) : unsetenv("TWOFOUR_ISA"); }

 private:
  std::unique_ptr<std::string> before_;
};

}  // namespace

TEST_CASE("TWOFOUR_ISA forces any instruction set that runs here; without it the fastest is used") {
  for (const Isa isa : available_isas()) {
    const ForcedIsa forced(std::string(isa_name(isa)).c_str());
    CHECK(best_isa() == isa);
  }
  const ForcedIsa none("");
  CHECK(best_isa() == available_isas().back());
  CHECK(available_isas().front() == Isa::portable);
}

TEST_CASE("a wrong TWOFOUR_ISA is an error that names what runs here") {
  std::string names;
  for (const Isa isa : available_isas()) names += (names.empty() ? "" : ", ") + std::string(isa_name(isa));
  const ForcedIsa forced("sse9");
  const std::string message = "TWOFOUR_ISA: expected what runs here (" + names + "), found \"sse9\"";
  CHECK_THROWS_WITH_AS(best_isa(), message.c_str(), Error);
}

}  // namespace prune_pack_test
