#pragma once
#include <array>
#include <cstdint>
#include <span>

#include "lib/lint/chunks/number_kind.h"

namespace twofour {

/// The positions of the lines, or of the columns, of zeros in a matrix.
struct ZeroPlaces {
  uint32_t count = 0, first = UINT32_MAX, end = 0;  ///< the first one, and the position after the last one
  /// Sums of a hash of each position: of all, of those in either half, and of even and odd ones. Positions
  /// are counted within the half, and in pairs.
  uint32_t all = 0;
  std::array<uint32_t, 2> halves{}, pairs{};
  /// Adds position `at` of `size`.
  void add(uint64_t at, uint64_t size);
  void merge(const ZeroPlaces& other);
};

/// True if all numbers of a line are zero or -0. For most lines, the first bytes show that they are not.
bool is_zero_line(NumberKind kind, std::span<const uint8_t> bytes);

/// The longest run of zeros in a line, by the positions of its numbers, and the number of all zeros.
struct ZeroRun {
  uint64_t begin = 0, end = 0, zeros = 0;
  uint64_t size() const { return end - begin; }
};
ZeroRun longest_zeros(NumberKind kind, std::span<const uint8_t> line);
/// True if the longest run of zeros is unlikely to be chance, given the share of zeros in the rest of a line.
bool is_unlikely_run(NumberKind kind, std::span<const uint8_t> line, const ZeroRun& run);

}  // namespace twofour
