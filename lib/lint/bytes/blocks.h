#pragma once
#include <cstdint>
#include <span>
#include <string_view>

namespace twofour {

/// Counts in NVFP4 blocks of sixteen for the rules about weights. Counts of a module's parts add up.
struct BlockCounts {
  static constexpr uint64_t kNone = UINT64_MAX;
  uint64_t blocks = 0;
  uint64_t nan = 0, negative = 0;    ///< block scales that are not valid
  uint64_t zero = 0, subnormal = 0;  ///< block scales of 0, and below 2^-6
  uint64_t vanished = 0;             ///< blocks of scale 0 with a code other than zero
  uint64_t top = 0, top_full = 0;    ///< blocks at scale 448; of these, with a code of 6
  uint64_t groups = 0, dense = 0;    ///< groups of the claimed pattern; of these, groups with more than it
                                     ///< allows
  uint64_t first_bad = kNone, first_vanished = kNone, first_dense = kNone;  ///< block, block, group
  uint32_t amax = 0;      ///< largest |code * block scale|, in units of 2^-10
  bool any_code = false;  ///< any code other than zero

  BlockCounts& operator+=(const BlockCounts& other);
};

/// Counts blocks with eight consecutive code bytes: codes [count, 8], scales [count]. `first`: number of the
/// first block in its module.
void count_blocks(const uint8_t* codes, const uint8_t* scales, uint64_t count, uint64_t first,
                  BlockCounts& counts);

/// The same if K is outermost: codes [groups, 8, n], scales [groups, n].
void count_blocks_k_outer(const uint8_t* codes, const uint8_t* scales, uint64_t groups, uint64_t n,
                          uint64_t first, BlockCounts& counts);

/// Counts groups of eight codes, four bytes each, that break "2:4" (in either quad) or "4:8-paired".
void count_pattern(std::span<const uint8_t> codes, std::string_view pattern, uint64_t first,
                   BlockCounts& counts);

/// Counts block scales alone, [count].
void count_scales(const uint8_t* scales, uint64_t count, uint64_t first, BlockCounts& counts);

}  // namespace twofour
