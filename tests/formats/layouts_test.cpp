#include "formats/layouts/layouts.h"

#include <doctest/doctest.h>

#include <cstring>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "formats/layouts/layout_ops.h"
#include "formats/layouts/part_map.h"
#include "tests/support/weights/layout_reference.h"

namespace layouts_test {

using namespace twofour;

namespace {

constexpr int64_t kRows[] = {1, 3, 4, 7, 8, 48, 63, 64, 65, 96, 128, 130};
constexpr int64_t kInputs[] = {16, 32, 48, 64, 80, 96, 128};

/// Calls `f` for every odd shape; gated ones, which some layouts interleave by eights, where I % 8 == 0.
template <class F>
void for_each_shape(F f) {
  for (const int64_t e : {1, 3}) {
    for (const int64_t n : kRows) {
      for (const int64_t k : kInputs) {
        f(Shape{e, n, k, false});
        if (n % 16 == 0) f(Shape{e, n, k, true});
      }
    }
  }
}

template <class Atom>
std::vector<Atom> random_atoms(Shape shape) {
  std::mt19937 random(static_cast<unsigned>(shape.n * 1000 + shape.k));
  std::vector<Atom> atoms(static_cast<size_t>(shape.n * shape.groups()));
  for (Atom& atom : atoms) {
    for (size_t i = 0; i < sizeof(atom); ++i)
      reinterpret_cast<uint8_t*>(&atom)[i] = static_cast<uint8_t>(random());
  }
  return atoms;
}

template <class Layout>
std::vector<std::vector<uint8_t>> pack(Shape shape, const std::vector<typename Layout::Atom>& atoms) {
  std::vector<std::vector<uint8_t>> parts;
  for (int p = 0; p < Layout::part_count; ++p) {
    parts.emplace_back(static_cast<size_t>(Layout::part(p, shape).bytes()), uint8_t{0xA5});
    pack_part<Layout>(p, shape, atoms, parts.back());
  }
  return parts;
}

// Layouts with one mistake each. All have v7's sizes unless they say otherwise.

/// Stores the first two quads of a group in each other's rows, but looks for them in their own.
struct SwappedRows : KMajorPlanes {
  static constexpr Source source(int part, Shape shape, Place at) {
    if (part == 0 && at.row % 4 < 2) at.row ^= 1;
    return KMajorPlanes::source(part, shape, at);
  }
};

/// Calls the last metadata byte padding.
struct DroppedByte : KMajorPlanes {
  static constexpr Source source(int part, Shape shape, Place at) {
    if (part == 1 && at.row == shape.k / 8 - 1 && at.col == shape.n - 1) return {0, 0, 0, kPadding};
    return KMajorPlanes::source(part, shape, at);
  }
};

/// Stores each scale in two rows and owns up to one.
struct DoubledByte : KMajorPlanes {
  static constexpr Part part(int i, Shape s) {
    return i == 2 ? Part{"scale", DType::kF8E4M3, s.k / 8, s.n} : KMajorPlanes::part(i, s);
  }
  static constexpr Source source(int part, Shape shape, Place at) {
    if (part == 2) at.row /= 2;
    return KMajorPlanes::source(part, shape, at);
  }
};

/// Claims two copies of each scale and has one.
struct MissingCopy : KMajorPlanes {
  static constexpr int copies(int byte) { return byte == 6 ? 2 : 1; }
};

/// Has a row of scales that no weights belong to.
struct RowTooMany : KMajorPlanes {
  static constexpr Part part(int i, Shape s) {
    return i == 2 ? Part{"scale", DType::kF8E4M3, s.k / 16 + 1, s.n} : KMajorPlanes::part(i, s);
  }
};

/// Gives every expert the weights of the first.
struct OneExpert : KMajorPlanes {
  static constexpr Source source(int part, Shape shape, Place at) {
    Source s = KMajorPlanes::source(part, shape, at);
    s.e = 0;
    return s;
  }
};

/// No mistake: swaps rows both ways, and stores scales twice with both copies known.
struct SwappedAndDoubled : DoubledByte {
  static constexpr Source source(int part, Shape shape, Place at) {
    if (part == 0) at.row ^= 1;
    return DoubledByte::source(part, shape, at);
  }
  static constexpr int copies(int byte) { return byte == 6 ? 2 : 1; }
  static constexpr Stored place(Shape shape, Source s, int copy = 0) {
    Stored stored = KMajorPlanes::place(shape, s);
    if (stored.part == 0) stored.at.row ^= 1;
    if (stored.part == 2) stored.at.row = 2 * stored.at.row + copy;
    return stored;
  }
};

/// No mistake: all seven bytes of an atom in one row of eight, the last of them padding, N outermost.
struct WholeAtoms {
  using Atom = SparseGroup;
  static constexpr const char* name = "whole";
  static constexpr int part_count = 1;
  static constexpr Axis outer = Axis::kN;
  static constexpr Part part(int, Shape s) { return {"atoms", DType::kU8, s.n, s.k / 2}; }
  static constexpr Source source(int, Shape, Place at) {
    return {at.e, at.row, at.col / 8, at.col % 8 == 7 ? kPadding : static_cast<int>(at.col % 8)};
  }
  static constexpr int copies(int) { return 1; }
  static constexpr Stored place(Shape, Source s, int = 0) { return {0, {s.e, s.n, s.group * 8 + s.byte}}; }
};

/// Holds a map against the layout, byte for byte.
template <class Layout>
void check_map(Shape shape) {
  CAPTURE(shape.n);
  CAPTURE(shape.k);
  for (int p = 0; p < Layout::part_count; ++p) {
    CAPTURE(p);
    const Part part = Layout::part(p, shape);
    const PartMap map = map_part<Layout>(p, shape);
    REQUIRE(map.unit * map.units == part.bytes());
    int64_t at = 0;
    for (int64_t unit = 0; unit < map.units; ++unit) {
      for (const PartRun& run : map.runs_of(unit)) {
        REQUIRE(unit * map.unit + run.begin == at);
        for (int64_t i = 0; i < run.count; ++i, ++at) {
          const Source s = Layout::source(p, shape, {0, at / part.cols, at % part.cols});
          REQUIRE(run.kind == (s.byte == kPadding ? ByteKind::kPadding : Layout::Atom::kind(s.byte)));
          if (run.kind == ByteKind::kPadding) continue;
          const Stored first = Layout::place(shape, s, 0);
          if (first.part != p) continue;
          REQUIRE(at - run.back == first.at.row * part.cols + first.at.col);
          REQUIRE(at - run.back >= unit * map.unit);
        }
      }
    }
    CHECK(at == part.bytes());
  }
}

}  // namespace

TEST_CASE("the map of a part says of every byte what it holds, of layouts that do not ship, too") {
  for_each_shape([](Shape shape) {
    if (shape.e != 1 || shape.gated) return;
    for_each_layout([&]<class Layout>() { check_map<Layout>(shape); });
    check_map<WholeAtoms>(shape);
    check_map<SwappedAndDoubled>(shape);
  });
  for (const int64_t n : {200, 256, 384}) {
    for (const int64_t k : {128, 144, 256, 320}) {
      for_each_layout([&]<class Layout>() { check_map<Layout>({1, n, k}); });
      check_map<WholeAtoms>({1, n, k});
    }
  }
  // Units are short, so that a tensor is read in pieces.
  CHECK(map_part<KMajorPacked>(0, {1, 96, 4096}).unit == 2 * 4 * 96);
  CHECK(map_part<GateUpInterleaved8>(1, {1, 4096, 512}).unit == 128 * 32);
  CHECK(map_part<KMajorPlanes>(1, {1, 0, 32}).units == 0);
}

TEST_CASE("the first part of every layout tells the shape of the matrices") {
  for_each_layout([]<class Layout>() {
    for_each_shape([](Shape shape) {
      const Part first = Layout::part(0, shape);
      const Shape found = Layout::shape_of(shape.e, first.rows, first.cols);
      CHECK(found == Shape{shape.e, shape.n, shape.k});
    });
  });
}

TEST_CASE("a message names every layout") {
  CHECK(layout_names() == "v7, v7-packed or g8");
  CHECK(kMostParts == 3);
}

TEST_CASE("every layout stores every source byte, and what it stores twice agrees") {
  for_each_layout([]<class Layout>() {
    CAPTURE(std::string(Layout::name));
    for_each_shape([](Shape shape) {
      CAPTURE(shape.e);
      CAPTURE(shape.n);
      CAPTURE(shape.k);
      CAPTURE(shape.gated);
      CHECK(!find_coverage_gap<Layout>(shape));
    });
  });
}

TEST_CASE("every layout gives back the weights that went into it") {
  for_each_layout([]<class Layout>() {
    CAPTURE(std::string(Layout::name));
    for_each_shape([](Shape shape) {
      if (shape.e != 1) return;
      CAPTURE(shape.n);
      CAPTURE(shape.k);
      CAPTURE(shape.gated);
      const auto atoms = random_atoms<typename Layout::Atom>(shape);
      const auto parts = pack<Layout>(shape, atoms);
      const std::vector<std::span<const uint8_t>> views(parts.begin(), parts.end());
      for (int64_t n = 0; n < shape.n; ++n) {
        for (int64_t g = 0; g < shape.groups(); ++g) {
          const auto back = unpack_atom<Layout>(shape, n, g, views);
          REQUIRE(std::memcmp(&back, &atoms[static_cast<size_t>(n * shape.groups() + g)], sizeof(back)) == 0);
        }
      }
    });
  });
}

TEST_CASE("every layout writes zeros into its padding") {
  for_each_layout([]<class Layout>() {
    for_each_shape([](Shape shape) {
      if (shape.e != 1) return;
      const auto parts = pack<Layout>(shape, random_atoms<typename Layout::Atom>(shape));
      for (int p = 0; p < Layout::part_count; ++p) {
        const Part part = Layout::part(p, shape);
        for (int64_t i = 0; i < part.bytes(); ++i) {
          if (Layout::source(p, shape, {0, i / part.cols, i % part.cols}).byte != kPadding) continue;
          REQUIRE(parts[static_cast<size_t>(p)][static_cast<size_t>(i)] == 0);
        }
      }
    });
  });
}

TEST_CASE("layouts are found by their names, which differ") {
  std::set<std::string> names;
  for_each_layout([&]<class Layout>() {
    CHECK(names.insert(Layout::name).second);
    std::string found;
    CHECK(with_layout(Layout::name, [&]<class Found>() { found = Found::name; }));
    CHECK(found == Layout::name);
  });
  CHECK(names.contains("v7"));
  CHECK(!with_layout("v8", []<class>() {}));
  CHECK(!with_layout("", []<class>() {}));
}

TEST_CASE("the coverage check finds each kind of mistake in a layout") {
  const Shape shape{2, 5, 48};
  REQUIRE(!find_coverage_gap<KMajorPlanes>(shape));
  CHECK(find_coverage_gap<SwappedRows>(shape));
  CHECK(find_coverage_gap<DroppedByte>(shape));
  CHECK(find_coverage_gap<DoubledByte>(shape));
  CHECK(find_coverage_gap<MissingCopy>(shape));
  CHECK(find_coverage_gap<RowTooMany>(shape));
  CHECK(find_coverage_gap<OneExpert>(shape));
  CHECK(!find_coverage_gap<SwappedAndDoubled>(shape));
}

TEST_CASE("the coverage check says where") {
  const auto swapped = find_coverage_gap<SwappedRows>({1, 3, 16});
  REQUIRE(swapped);
  CHECK(swapped->part == 0);
  CHECK(swapped->at == Place{0, 0, 0});
  const auto extra = find_coverage_gap<RowTooMany>({1, 3, 16});
  REQUIRE(extra);
  CHECK(extra->part == 2);
  CHECK(extra->at == Place{0, 1, 0});
}

TEST_CASE("v7: comp is [K/4, N], meta [K/8, N], scale [K/16, N], neighbours along N") {
  // N = 2, K = 32. Byte b of atom (n, g) is 0x80 n + 0x10 g + b; 0 to 3 are comp, 4 and 5 meta, 6 the scale.
  std::vector<SparseGroup> atoms;
  for (const int first : {0x00, 0x10, 0x80, 0x90}) {  // (0, 0), (0, 1), (1, 0), (1, 1)
    const auto byte = [&](int b) { return static_cast<uint8_t>(first + b); };
    atoms.push_back({{byte(0), byte(1), byte(2), byte(3)}, {byte(4), byte(5)}, byte(6)});
  }
  const auto parts = pack<KMajorPlanes>({1, 2, 32}, atoms);
  REQUIRE(parts.size() == 3);
  CHECK(parts[0] == std::vector<uint8_t>{0x00, 0x80,    // k =  0 ..  3 of both rows
                                         0x01, 0x81,    //      4 ..  7
                                         0x02, 0x82,    //      8 .. 11
                                         0x03, 0x83,    //     12 .. 15
                                         0x10, 0x90,    //     16 .. 19
                                         0x11, 0x91,    //     20 .. 23
                                         0x12, 0x92,    //     24 .. 27
                                         0x13, 0x93});  //     28 .. 31
  CHECK(parts[1] == std::vector<uint8_t>{0x04, 0x84,    // k =  0 ..  7
                                         0x05, 0x85,    //      8 .. 15
                                         0x14, 0x94,    //     16 .. 23
                                         0x15, 0x95});  //     24 .. 31
  CHECK(parts[2] == std::vector<uint8_t>{0x06, 0x86,    // k =  0 .. 15
                                         0x16, 0x96});  //     16 .. 31
}

TEST_CASE("v7 takes 3.5 bits a weight and calls its parts comp, meta and scale") {
  const Shape shape{128, 1536, 2048};
  CHECK(layout_bytes<KMajorPlanes>(shape) * 16 == shape.e * shape.n * shape.k * 7);
  CHECK(std::string(KMajorPlanes::part(0, shape).suffix) == "comp");
  CHECK(std::string(KMajorPlanes::part(1, shape).suffix) == "meta");
  CHECK(std::string(KMajorPlanes::part(2, shape).suffix) == "scale");
  CHECK(KMajorPlanes::part(0, shape).dtype == DType::kU8);
  CHECK(KMajorPlanes::part(1, shape).dtype == DType::kU8);
  CHECK(KMajorPlanes::part(2, shape).dtype == DType::kF8E4M3);
}

TEST_CASE("v7: what a byte far inside a large tensor holds, worked by hand") {
  const Shape shape{8, 1536, 2048};
  // Row 301 of comp holds k = 1204 .. 1207: group 75 (1200 .. 1215), its second quad.
  CHECK(KMajorPlanes::source(0, shape, {5, 301, 77}) == Source{5, 77, 75, 1});
  // Row 151 of meta holds k = 1208 .. 1215: the second metadata byte of group 75.
  CHECK(KMajorPlanes::source(1, shape, {5, 151, 77}) == Source{5, 77, 75, 5});
  CHECK(KMajorPlanes::source(2, shape, {5, 75, 77}) == Source{5, 77, 75, 6});
}

}  // namespace layouts_test
