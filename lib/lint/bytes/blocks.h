#pragma once
#include <cstdint>
#include <span>
#include <string_view>

namespace twofour {

/// Counts of faults in NVFP4 blocks of sixteen weights, which rules about weights report. The counts of a
/// module's parts can be added.
struct BlockCounts {
  static constexpr uint64_t kNone = UINT64_MAX;
  uint64_t blocks = 0;
  uint64_t nan = 0, negative = 0;    ///< number of block scales that are NaN, and that are negative
  uint64_t zero = 0, subnormal = 0;  ///< number of block scales of 0, and below 2^-6
  uint64_t vanished = 0;             ///< number of blocks with scale 0 and a code other than zero
  uint64_t top = 0, top_full = 0;    ///< number of blocks with scale 448; of these, number with a code of 6
  /// Number of groups of the claimed pattern; of these, number with more nonzero codes (or pairs) than the
  /// pattern allows.
  uint64_t groups = 0, dense = 0;
  /// Positions of the first block with an invalid scale, the first vanished block and the first dense group;
  /// kNone: there is none.
  uint64_t first_bad = kNone, first_vanished = kNone, first_dense = kNone;
  uint32_t amax = 0;      ///< largest |code * block scale|, in units of 2^-10
  bool any_code = false;  ///< true if any code is not zero

  BlockCounts& operator+=(const BlockCounts& other);
};

/// Counts `count` blocks, each with eight consecutive code bytes: codes [count, 8], scales [count]. `first`
/// is the position of the first block in its module.
void count_blocks(const uint8_t* codes, const uint8_t* scales, uint64_t count, uint64_t first,
                  BlockCounts& counts);

/// Counts blocks of a module in which K is the outer dimension: codes [groups, 8, n], scales [groups, n].
void count_blocks_k_outer(const uint8_t* codes, const uint8_t* scales, uint64_t groups, uint64_t n,
                          uint64_t first, BlockCounts& counts);

/// Counts groups of eight codes (four bytes) that break a pattern. For "2:4", one of the group's two quads
/// must break it; the other pattern is "4:8-paired".
void count_pattern(std::span<const uint8_t> codes, std::string_view pattern, uint64_t first,
                   BlockCounts& counts);

/// Counts block scales alone: scales [count].
void count_scales(const uint8_t* scales, uint64_t count, uint64_t first, BlockCounts& counts);

}  // namespace twofour
