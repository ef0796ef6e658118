#pragma once
#include <cstdint>

// Files that are compiled for one instruction set include this file. Nothing here may emit a function: the
// linker might keep the copy that only the newest processors can run. So <cstdint> is the only standard
// header.

namespace twofour {

/// Statistics of pruning a run of groups of one row, in the units of PruneStats.
struct RunTally {
  uint64_t tied;
  uint64_t bad_scales;
  uint64_t energy;
  uint64_t kept_energy;
};

/// The largest number of groups in a run. Then 64 bits hold its energy, which is at most 16 * 12^2 * 229376^2
/// < 2^47 per group.
inline constexpr int64_t kMaxRunGroups = 1 << 16;

/// The number of bytes that `select` may write after the end of `comp` and of `meta`.
inline constexpr int64_t kSelectSlack = 64;

/// The square of an E2M1 magnitude in halves, indexed by the three low bits of the code.
inline constexpr uint8_t kHalvesSquared[8] = {0, 1, 4, 9, 16, 36, 64, 144};

/// The functions for one instruction set, from which prune_pack is built. All give the same bytes and
/// tallies.
struct PrunePackOps {
  /// Prunes a run of groups of one row to 2:4 in the order of K.
  ///   codes [8 * groups], scales [groups] -> comp [4 * groups], meta [2 * groups]
  /// `ahead` points to the codes of a later run, which may be prefetched.
  RunTally (*select)(const uint8_t* codes, const uint8_t* scales, int64_t groups, const uint8_t* ahead,
                     uint8_t* comp, uint8_t* meta);

  /// Copies bytes of [rows, cols] to one destination for each column: dst[c][offset + r] = src[r * pitch +
  /// c]. Reads nothing outside the matrix. `streaming` asks for stores around the cache; every dst[c] +
  /// offset is then a multiple of 64.
  void (*transpose)(const uint8_t* src, int64_t pitch, int64_t rows, int64_t cols, uint8_t* const* dst,
                    int64_t offset, bool streaming);

  /// Orders streaming stores before a store that tells another thread that they are done.
  void (*fence)();
};

extern const PrunePackOps kPrunePackPortable;
extern const PrunePackOps kPrunePackAvx2;
extern const PrunePackOps kPrunePackAvx512;
extern const PrunePackOps kPrunePackNeon;

/// A table of 16 bytes, in which a byte shuffle looks up nibbles.
struct Table16 {
  alignas(16) uint8_t entry[16];
};

/// Sort keys of codes: magnitude << 5 | (3 - place) << 3 | sign. They sort by magnitude, then by the lower
/// place.
consteval Table16 key_table(int place) {
  Table16 table{};
  for (int code = 0; code < 16; ++code) {
    table.entry[code] = static_cast<uint8_t>((code & 7) << 5 | (3 - place) << 3 | code >> 3);
  }
  return table;
}
inline constexpr Table16 kKeys[4] = {key_table(0), key_table(1), key_table(2), key_table(3)};

/// Two tables that turn a key into place << 6 | code. Each gives one part, from one nibble of the key.
inline constexpr Table16 kPlaceAndCodeOfHigh = []() consteval {
  Table16 table{};  // magnitude << 1 | upper bit of 3 - place
  for (int i = 0; i < 16; ++i) table.entry[i] = static_cast<uint8_t>(i >> 1 | (i & 1 ? 0 : 0x80));
  return table;
}
();
inline constexpr Table16 kPlaceAndCodeOfLow = []() consteval {
  Table16 table{};  // lower bit of 3 - place << 3 | sign
  for (int i = 0; i < 16; ++i) table.entry[i] = static_cast<uint8_t>((i & 1) << 3 | (i & 8 ? 0 : 0x40));
  return table;
}
();

/// The squares of codes in halves.
inline constexpr Table16 kSquares = []() consteval {
  Table16 table{};
  for (int code = 0; code < 16; ++code) table.entry[code] = kHalvesSquared[code & 7];
  return table;
}
();

}  // namespace twofour
