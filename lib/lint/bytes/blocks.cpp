#include "lib/lint/bytes/blocks.h"

#include <algorithm>
#include <cstring>

#include "formats/e2m1.h"
#include "formats/e4m3.h"
#include "lib/lint/chunks/number_counts.h"
#include "lib/lint/chunks/number_kind.h"

namespace twofour {
namespace {

constexpr uint8_t kTop = 0x7E;     // 448
constexpr uint8_t kNormal = 0x08;  // 2^-6, the smallest normal number

/// Returns the largest magnitude among sixteen codes, from 0 to 7.
unsigned largest_code(uint64_t codes) {
  const uint64_t m = codes & kCodeBits;
  // Go through the bits from the highest. If some remaining code has the bit, drop the codes without it.
  uint64_t in = kCodeUnits;
  unsigned largest = 0;
  for (unsigned bit = 4; bit > 0; bit /= 2) {
    const uint64_t has = in & (m >> (bit == 4 ? 2 : bit == 2 ? 1 : 0)) & kCodeUnits;
    if (has == 0) continue;
    in = has;
    largest |= bit;
  }
  return largest;
}

/// Returns the smallest block scale that could raise `amax`. It is at most 448, so that blocks of scale 448
/// are always checked.
uint8_t next_scale(uint32_t amax) {
  uint8_t scale = 1;
  while (scale < kTop && 12 * e4m3_units(scale) <= amax) ++scale;
  return scale;
}

/// True if the codes of a block with this scale must be checked: always for scale 0, otherwise from `least`
/// up.
bool is_candidate(uint8_t scale, uint8_t least) {
  return static_cast<uint8_t>(scale - 1) >= static_cast<uint8_t>(least - 1);
}

/// Number of scales whose range is checked at once, and number of scales in a part of these.
constexpr uint64_t kRun = 512, kPart = 64;

struct ByteRange {
  uint8_t low = 0xFF, high = 0;
};

/// Returns the range of some scales. In most cases it shows that no block needs a check.
ByteRange range_of(const uint8_t* scales, uint64_t count) {
  uint8_t low = 0xFF, high = 0;
#pragma omp simd reduction(min : low) reduction(max : high)
  for (uint64_t i = 0; i < count; ++i) {
    const uint8_t s = scales[i];  // a copy, since with a reference g++ 12 does not vectorize
    low = s < low ? s : low;
    high = s > high ? s : high;
  }
  return {low, high};
}

void count_candidate(uint64_t codes, uint8_t scale, uint64_t block, uint8_t& least, BlockCounts& counts) {
  if (!e4m3_is_block_scale(scale)) return;  // counted together with the scales
  if (scale == 0) {
    if ((codes & kCodeBits) == 0) return;
    if (counts.vanished++ == 0) counts.first_vanished = block;
    return;
  }
  const unsigned code = largest_code(codes);
  if (scale == kTop) counts.top_full += code == 7;
  const uint32_t units = static_cast<uint32_t>(e2m1_halves(code)) * e4m3_units(scale);
  if (units <= counts.amax) return;
  counts.amax = units;
  least = next_scale(units);
}

}  // namespace

BlockCounts& BlockCounts::operator+=(const BlockCounts& o) {
  using C = BlockCounts;
  for (const auto sum : {&C::blocks, &C::nan, &C::negative, &C::zero, &C::subnormal, &C::vanished, &C::top,
                         &C::top_full, &C::groups, &C::dense})
    this->*sum += o.*sum;
  for (const auto first : {&C::first_bad, &C::first_vanished, &C::first_dense})
    this->*first = std::min(this->*first, o.*first);
  amax = std::max(amax, o.amax);
  any_code = any_code || o.any_code;
  return *this;
}

namespace {

/// Adds the scales of a run. Returns their range.
ByteRange count_run(const uint8_t* scales, uint64_t count, uint64_t first, BlockCounts& counts) {
  const ByteRange range = range_of(scales, count);
  counts.blocks += count;
  if (range.low >= kNormal && range.high < kTop) return range;
  uint64_t small = 0, zero = 0, top = 0, bad = 0;
  for (uint64_t i = 0; i < count; ++i) {
    small += scales[i] < kNormal;
    zero += scales[i] == 0;
    top += scales[i] == kTop;
    bad += scales[i] > kTop;
  }
  counts.zero += zero;
  counts.subnormal += small - zero;
  counts.top += top;
  for (uint64_t i = 0; i < count && bad > 0; ++i) {
    if (scales[i] <= kTop) continue;
    (e4m3_is_nan(scales[i]) ? counts.nan : counts.negative) += 1;
    counts.first_bad = std::min(counts.first_bad, first + i);
  }
  return range;
}

}  // namespace

void count_scales(const uint8_t* scales, uint64_t count, uint64_t first, BlockCounts& counts) {
  for (uint64_t at = 0; at < count; at += kRun)
    count_run(scales + at, std::min(kRun, count - at), first + at, counts);
}

void count_blocks(const uint8_t* codes, const uint8_t* scales, uint64_t count, uint64_t first,
                  BlockCounts& counts) {
  for (uint64_t i = 0; i < count && !counts.any_code; ++i)
    counts.any_code = (word_of(codes + 8 * i) & kCodeBits) != 0;
  uint8_t least = next_scale(counts.amax);
  for (uint64_t at = 0; at < count; at += kRun) {
    const uint64_t end = std::min(count, at + kRun);
    const auto most = static_cast<uint8_t>(std::min(least, kTop) - 1);
    if (most >= kNormal && best_count_ops().are_within(scales + at, end - at, kNormal, most)) {
      counts.blocks += end - at;
      continue;  // nothing to count, and no larger number
    }
    const ByteRange range = count_run(scales + at, end - at, first + at, counts);
    if (range.low > 0 && range.high < least) continue;
    for (uint64_t part = at; part < end; part += kPart) {
      const uint64_t part_end = std::min(end, part + kPart);
      const auto below = static_cast<uint8_t>(least - 1);
      if (below > 0 && best_count_ops().are_within(scales + part, part_end - part, 1, below)) continue;
      for (uint64_t i = part; i < part_end; ++i) {
        if (is_candidate(scales[i], least))
          count_candidate(word_of(codes + 8 * i), scales[i], first + i, least, counts);
      }
    }
  }
}

void count_blocks_k_outer(const uint8_t* codes, const uint8_t* scales, uint64_t groups, uint64_t n,
                          uint64_t first, BlockCounts& counts) {
  count_scales(scales, groups * n, first, counts);
  for (uint64_t i = 0; i < groups * n && !counts.any_code; ++i)
    counts.any_code = (word_of(codes + 8 * i) & kCodeBits) != 0;
  uint8_t least = next_scale(counts.amax);
  for (uint64_t g = 0; g < groups; ++g) {
    for (uint64_t i = 0; i < n; ++i) {
      const uint8_t scale = scales[g * n + i];
      if (!is_candidate(scale, least)) continue;
      uint8_t block[8];
      for (uint64_t row = 0; row < 8; ++row) block[row] = codes[(g * 8 + row) * n + i];
      count_candidate(word_of(block), scale, first + g * n + i, least, counts);
    }
  }
}

void count_pattern(std::span<const uint8_t> codes, std::string_view pattern, uint64_t first,
                   BlockCounts& counts) {
  const bool paired = pattern == "4:8-paired";
  const uint64_t count = codes.size() / 4;
  counts.groups += count;
  for (uint64_t i = 0; i < count; ++i) {
    uint32_t octet = 0;
    std::memcpy(&octet, &codes[4 * i], sizeof(octet));
    const uint32_t non_zero = (octet | octet >> 1 | octet >> 2) & 0x11111111u;
    // A pair is a byte of the word, and a quad is half of it. At most two pairs, or two codes of each quad,
    // may be nonzero.
    const uint32_t pairs = (non_zero | non_zero >> 4) & 0x01010101u;
    const bool dense =
        paired ? __builtin_popcount(pairs) > 2
               : __builtin_popcount(non_zero & 0xFFFFu) > 2 || __builtin_popcount(non_zero >> 16) > 2;
    if (!dense) continue;
    if (counts.dense++ == 0) counts.first_dense = first + i;
  }
}

}  // namespace twofour
