#pragma once
#include <cstdint>

// Files that are compiled for one instruction set include this file. All functions here are inlined, so that
// the linker cannot confuse copies of different instruction sets.

namespace twofour {

enum class Isa;

/// Prunes `count` words of sixteen codes each to `out`, which may be `codes`. Writes for each word the sum of
/// squared halves before and after. Adds to `tied` the chunks (quads or octets) that a tie decided.
using PruneWords = void(bool pairs, const uint8_t* codes, int64_t count, uint8_t* out, uint64_t* energy,
                        uint64_t* kept_energy, uint64_t& tied);

/// Functions that prune four words at a time. `count` must be a multiple of four.
PruneWords prune_words_avx2, prune_words_neon;

/// The function that prunes four words at a time on `isa`. Null if there is none.
PruneWords* wide_prune_words(Isa isa);

/// Places `bits` in lane `index` of every chunk of four lanes.
template <int Bits>
constexpr uint64_t in_lane(int index, uint64_t bits) {
  uint64_t word = 0;
  for (int at = index * Bits; at < 64; at += 4 * Bits) word |= bits << at;
  return word;
}

/// Selects the two largest lanes of each chunk of four lanes with `Bits` bits each. If lanes are equal, the
/// lower one is selected. Returns a mask with all bits of the selected lanes. The top bit of each lane of
/// `size` is clear. Adds to `tied` the chunks that a tie decided. All lanes are compared at once, each with
/// the lanes one, two and three places above. `Word` is 64 bits, or a vector of 64-bit words.
template <int Bits, class Word>
[[gnu::always_inline]] inline Word keep_two(Word size, Word& tied) {
  constexpr uint64_t kTop = uint64_t{1} << (Bits - 1);
  constexpr uint64_t top0 = in_lane<Bits>(0, kTop), top1 = in_lane<Bits>(1, kTop),
                     top2 = in_lane<Bits>(2, kTop), top3 = in_lane<Bits>(3, kTop);
  constexpr uint64_t tops = top0 | top1 | top2 | top3, below = tops - (tops >> (Bits - 1));
  // The top bit of lane i is set if lane i is not smaller than lane i + d. Lanes near the end of a chunk have
  // no meaning.
  const Word up1 = size >> Bits, up2 = size >> 2 * Bits, up3 = size >> 3 * Bits;
  const Word wins1 = ((size | tops) - up1) & tops, wins2 = ((size | tops) - up2) & tops,
             wins3 = ((size | tops) - up3) & tops;
  // A lane is selected unless it loses two of its three comparisons. The results of comparisons with lower
  // lanes are shifted to the lane.
  const Word a = (~wins1 & top0) | ((wins1 << Bits) & top1) | ((wins2 << 2 * Bits) & top2) |
                 ((wins3 << 3 * Bits) & top3);
  const Word b = (~wins2 & top0) | (~wins1 & top1) | ((wins1 << Bits) & top2) | ((wins2 << 2 * Bits) & top3);
  const Word c = (~wins3 & top0) | (~wins2 & top1) | (~wins1 & top2) | ((wins1 << Bits) & top3);
  const Word kept = ~((a & b) | (c & (a | b))) & tops;
  // A chunk is tied if a selected lane equals a lane that is not selected.
  Word any = ~((size ^ up1) + below) & (kept ^ (kept >> Bits)) & (top0 | top1 | top2);
  any |= ~((size ^ up2) + below) & (kept ^ (kept >> 2 * Bits)) & (top0 | top1);
  any |= ~((size ^ up3) + below) & (kept ^ (kept >> 3 * Bits)) & top0;
  any |= any >> 2 * Bits;
  any |= any >> Bits;
  any = (any & top0) >> (Bits - 1);
  if constexpr (Bits < 16) any += any >> 32;
  if constexpr (Bits < 8) any += any >> 16;
  tied += any & 7;
  return kept | (kept - (kept >> (Bits - 1)));
}

}  // namespace twofour
