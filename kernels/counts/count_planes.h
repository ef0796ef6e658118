#pragma once
#include "kernels/counts/count_vector.h"

// Counts of codes and bytes by planes of bits. It needs a processor that counts the bits of whole vectors.

namespace twofour {
namespace {
namespace counting {

/// Four vectors of codes as planes of bits: plane b has bit b of every code. In each group of four bits, bit
/// v is that of vector v.
struct Planes {
  Word b0, b1, b2, s;
};

[[gnu::always_inline]] inline Word select(uint64_t mask, Word a, Word b) { return (a & mask) | (b & ~mask); }

[[gnu::always_inline]] inline Planes planes_of(Word w0, Word w1, Word w2, Word w3) {
  constexpr uint64_t kPairs = 0x3333333333333333u, kOdd = 0x5555555555555555u;
  const Word low0 = select(kPairs, w0, w2 << 2), low1 = select(kPairs, w1, w3 << 2),
             high0 = select(kPairs, w0 >> 2, w2), high1 = select(kPairs, w1 >> 2, w3);
  return {select(kOdd, low0, low1 << 1), select(kOdd, low0 >> 1, low1), select(kOdd, high0, high1 << 1),
          select(kOdd, high0 >> 1, high1)};
}

[[gnu::always_inline]] inline Word bits_of(Word w) {
  return (Word)__builtin_ia32_vpopcountq_v8di((__attribute__((vector_size(kWidth))) long long)w);
}

/// For each set of bits, the numbers of codes that have all of them, by lanes.
struct PlaneCounts {
  Word n1 = {}, n2 = {}, n3 = {}, n4 = {}, n5 = {}, n6 = {}, n7 = {}, n8 = {}, n9 = {}, n10 = {}, n11 = {},
       n12 = {}, n13 = {}, n14 = {}, n15 = {};

  [[gnu::always_inline]] void add(const Planes& p) {
    const Word b01 = p.b0 & p.b1, b02 = p.b0 & p.b2, b12 = p.b1 & p.b2, b012 = b01 & p.b2;
    n1 += bits_of(p.b0);
    n2 += bits_of(p.b1);
    n3 += bits_of(b01);
    n4 += bits_of(p.b2);
    n5 += bits_of(b02);
    n6 += bits_of(b12);
    n7 += bits_of(b012);
    n8 += bits_of(p.s);
    n9 += bits_of(p.b0 & p.s);
    n10 += bits_of(p.b1 & p.s);
    n11 += bits_of(b01 & p.s);
    n12 += bits_of(p.b2 & p.s);
    n13 += bits_of(b02 & p.s);
    n14 += bits_of(b12 & p.s);
    n15 += bits_of(b012 & p.s);
  }
  /// Adds the numbers of `all` codes to `codes`.
  [[gnu::always_inline]] void move_to(uint64_t all, uint64_t (&codes)[16]) const {
    const Word by_bits[] = {n1, n2, n3, n4, n5, n6, n7, n8, n9, n10, n11, n12, n13, n14, n15};
    uint64_t with[16] = {all};
    for (int i = 1; i < 16; ++i) with[i] = sum_lanes(by_bits[i - 1]);
    add_exact(with, codes);
  }
};

/// Loads a vector. Beyond the last one, it is zero.
[[gnu::always_inline]] inline Word load_or_zero(const uint8_t* bytes, uint64_t at, uint64_t words) {
  return at < words ? load(bytes + at * kWidth) : Word{};
}

inline void add_code_planes(const uint8_t* bytes, uint64_t words, CodeCounts& counts) {
  constexpr uint64_t kVectors = 4, kUnits = 0x1111111111111111u;
  PlaneCounts planes;
  Mask zero = {}, not_full = {};
  const auto add = [&](Word w0, Word w1, Word w2, Word w3) __attribute__((always_inline)) {
    const Planes p = planes_of(w0, w1, w2, w3);
    planes.add(p);
    const Word any = p.b0 | p.b1 | p.b2, all = p.b0 & p.b1 & p.b2;
#pragma GCC unroll 4
    for (uint64_t v = 0; v < kVectors; ++v) {  // a block is a lane of one vector; true is -1
      zero += (any & kUnits << v) == Word{};
      not_full += (all & kUnits << v) == Word{};
    }
  };
  uint64_t at = 0;
  for (; at + kVectors <= words; at += kVectors) {
    const uint8_t* const from = bytes + at * kWidth;
    add(load(from), load(from + kWidth), load(from + 2 * kWidth), load(from + 3 * kWidth));
  }
  uint64_t added = at;
  if (at < words) {
    added += kVectors;
    add(load(bytes + at * kWidth), load_or_zero(bytes, at + 1, words), load_or_zero(bytes, at + 2, words),
        load_or_zero(bytes, at + 3, words));
  }
  planes.move_to(words * kWidth * 2, counts.codes);
  counts.zero_blocks -= sum_lanes(zero) + (added - words) * (kWidth / 8);
  counts.full_blocks += added * (kWidth / 8) + sum_lanes(not_full);
}

/// Adds the upper halves of bytes.
inline void add_upper_planes(const uint8_t* bytes, uint64_t words, uint64_t (&upper)[16]) {
  constexpr uint64_t kLow = 0x0F0F0F0F0F0F0F0Fu, kVectors = 8;
  PlaneCounts planes;
  for (uint64_t at = 0; at < words; at += kVectors) {
    const auto pair = [&](uint64_t i) __attribute__((always_inline)) {
      return select(kLow, load_or_zero(bytes, at + i, words) >> 4, load_or_zero(bytes, at + i + 1, words));
    };
    planes.add(planes_of(pair(0), pair(2), pair(4), pair(6)));
  }
  planes.move_to(words * kWidth, upper);
}

/// Returns the masks of the nibbles that have all bits of an index.
[[gnu::always_inline]] inline void products_of(const Planes& p, Word (&with)[16]) {
  with[0] = ~Word{};
  with[1] = p.b0;
  with[2] = p.b1;
  with[4] = p.b2;
  with[8] = p.s;
#pragma GCC unroll 16
  for (int i = 3; i < 16; ++i) {
    if ((i & (i - 1)) != 0) with[i] = with[i & -i] & with[i & (i - 1)];
  }
}

/// Adds the bytes of eight groups of eight vectors: of those with each upper half, the numbers by lower half.
inline void histogram_planes(const uint8_t* bytes, uint64_t size, uint64_t* counts) {
  constexpr uint64_t kLow = 0x0F0F0F0F0F0F0F0Fu, kVectors = 8, kGroups = 8, kGroup = kVectors * kWidth;
  Word sums[16][16];
  bool is_used[16] = {};
  uint64_t at = 0;
  while (at + kGroup <= size) {
    const uint64_t groups = size - at < kGroups * kGroup ? (size - at) / kGroup : kGroups;
    Word lower[kGroups][16];
    Planes upper[kGroups];
    auto least = (WordBytes)load(bytes + at), most = least;
    for (uint64_t g = 0; g < groups; ++g) {
      Word low[4], high[4];
#pragma GCC unroll 4
      for (uint64_t v = 0; v < 4; ++v) {
        const Word a = load(bytes + at + g * kGroup + 2 * v * kWidth),
                   b = load(bytes + at + g * kGroup + (2 * v + 1) * kWidth);
        low[v] = select(kLow, a, b << 4);
        high[v] = select(kLow, a >> 4, b);
        const auto x = (WordBytes)a, y = (WordBytes)b;
        least = x < least ? x : least;
        least = y < least ? y : least;
        most = x > most ? x : most;
        most = y > most ? y : most;
      }
      products_of(planes_of(low[0], low[1], low[2], low[3]), lower[g]);
      upper[g] = planes_of(high[0], high[1], high[2], high[3]);
    }
    unsigned first = 255, last = 0;
    for (int lane = 0; lane < kWidth; ++lane) {
      first = least[lane] < first ? least[lane] : first;
      last = most[lane] > last ? most[lane] : last;
    }
    for (unsigned u = first >> 4; u <= last >> 4; ++u) {
      Word n[16] = {};
      const auto other = [&](unsigned bit) __attribute__((always_inline)) {
        return Word{} + ((u >> bit & 1u) != 0 ? 0 : ~uint64_t{0});
      };
      const Word o0 = other(0), o1 = other(1), o2 = other(2), o3 = other(3);
      if (is_used[u]) __builtin_memcpy(n, sums[u], sizeof(n));
      for (uint64_t g = 0; g < groups; ++g) {
        const Planes& p = upper[g];
        const Word is_upper = (p.b0 ^ o0) & (p.b1 ^ o1) & (p.b2 ^ o2) & (p.s ^ o3);
#pragma GCC unroll 16
        for (int i = 0; i < 16; ++i) n[i] += bits_of(is_upper & lower[g][i]);
      }
      __builtin_memcpy(sums[u], n, sizeof(n));
      is_used[u] = true;
    }
    at += groups * kGroup;
  }
  for (int u = 0; u < 16; ++u) {
    if (!is_used[u]) continue;
    uint64_t with[16], exact[16] = {};
    for (int i = 0; i < 16; ++i) with[i] = sum_lanes(sums[u][i]);
    add_exact(with, exact);
    for (int i = 0; i < 16; ++i) counts[16 * u + i] += exact[i];
  }
  for (; at < size; ++at) ++counts[bytes[at]];
}

}  // namespace counting
}  // namespace
}  // namespace twofour
