#pragma once
#include <cstdint>

#include "kernels/pack/prune_pack_ops.h"

// Included by files that are compiled for one instruction set: tables alone, made by the compiler.

namespace twofour {

/// What a byte shuffle looks nibbles up in.
struct Table16 {
  alignas(16) uint8_t entry[16];
};

/// Sort keys by code: magnitude << 5 | (3 - place) << 3 | sign sorts by magnitude, then by the lower place.
consteval Table16 key_table(int place) {
  Table16 table{};
  for (int code = 0; code < 16; ++code) {
    table.entry[code] = static_cast<uint8_t>((code & 7) << 5 | (3 - place) << 3 | code >> 3);
  }
  return table;
}
inline constexpr Table16 kKeys[4] = {key_table(0), key_table(1), key_table(2), key_table(3)};

/// From the two nibbles of a key to place << 6 | code, one part each.
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

/// The square of a code in halves.
inline constexpr Table16 kSquares = []() consteval {
  Table16 table{};
  for (int code = 0; code < 16; ++code) table.entry[code] = kHalvesSquared[code & 7];
  return table;
}
();

}  // namespace twofour
