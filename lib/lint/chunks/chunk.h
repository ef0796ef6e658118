#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/counts/count_ops.h"
#include "lib/lint/chunks/number_kind.h"

namespace twofour {

/// Counts of a few neighbouring lines of a matrix, at least kBytes of them. Chunks of one matrix are compared
/// with each other.
struct Chunk {
  static constexpr uint64_t kBytes = 1u << 14;
  uint64_t first_line = 0, lines = 0;
  uint64_t numbers = 0, zeros = 0, negative = 0;
  /// Number of numbers for each code of four bits, or for each upper half of a byte. Zeros for floats.
  std::array<uint32_t, 16> classes{};
  uint64_t blocks = 0, full_blocks = 0;   ///< for E2M1: blocks that are not zero, and those with a code of 6
  uint8_t any_bits = 0, all_bits = 0xFF;  ///< for FP8: bits that are set in any number, and in all
  uint64_t tiny_scales = 0;               ///< for E2M1: blocks whose scale is too small to be exact
  /// For four-bit codes, the windows in which every code is equally frequent, as of noise. A window is
  /// smaller than a page of 4 KiB, so that every page has a whole window.
  static constexpr uint64_t kWindow = 2048;
  uint32_t noise_windows = 0;
};

/// True if the codes of a window are equally frequent.
bool is_noise_window(const CodeCounts& window);

/// The ways in which chunks cannot belong to the same weights as the rest of their matrix.
enum class RegionKind {
  kNone,
  kNoise,   ///< every code equally often
  kSigns,   ///< hardly any negative numbers, or hardly any positive ones
  kCodes,   ///< other shares of codes
  kBits,    ///< a bit that is never set, or always
  kBlocks,  ///< blocks without a code of 6, which nearly all others have
};

/// The chunks of one kind that do not belong to their matrix.
struct OddRegion {
  RegionKind kind = RegionKind::kNone;
  uint64_t first_line = 0, lines = 0;  ///< first line, and number of lines in all these chunks
  /// Share of negative numbers, or of blocks with a code of 6, in the first chunk and in the middle one.
  double found = 0, usual = 0;
  int bit = 0;  ///< for kBits: number of the bit
};

/// Returns the most certain oddity among the chunks of a matrix.
OddRegion odd_region(NumberKind kind, std::span<const Chunk> chunks);

}  // namespace twofour
