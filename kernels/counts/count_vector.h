#pragma once
#include "kernels/counts/count_ops.h"

// Files that are compiled for one instruction set include this file; see count_ops.h. They define
// COUNT_WIDTH, the bytes of a vector.

namespace twofour {
namespace {
namespace counting {

constexpr int kWidth = COUNT_WIDTH;

typedef uint64_t Word __attribute__((vector_size(kWidth)));
typedef int64_t Mask __attribute__((vector_size(kWidth)));

[[gnu::always_inline]] inline Word load(const uint8_t* bytes) {
  Word w;
  __builtin_memcpy(&w, bytes, kWidth);
  return w;
}
/// Widens the numbers of half a vector. g++ 12 converts vectors in two halves, which takes three times as
/// long.
template <class Wide, class Narrow>
[[gnu::always_inline]] inline Wide widen(Narrow narrow) {
  static_assert(sizeof(narrow) == kWidth / 2 && sizeof(Wide) == kWidth);
  constexpr bool kAreBytes = sizeof(narrow[0]) == 1;
#if COUNT_WIDTH == 64 && !defined(__clang__)
  typedef char Bytes __attribute__((vector_size(32)));
  typedef short Shorts32 __attribute__((vector_size(64)));
  typedef short Shorts16 __attribute__((vector_size(32)));
  typedef int Ints16 __attribute__((vector_size(64)));
  if constexpr (kAreBytes) return (Wide)__builtin_ia32_pmovzxbw512_mask((Bytes)narrow, Shorts32{}, ~0u);
  return (Wide)__builtin_ia32_pmovzxwd512_mask((Shorts16)narrow, Ints16{}, 0xFFFF);
#elif COUNT_WIDTH == 32 && !defined(__clang__)
  typedef char Bytes __attribute__((vector_size(16)));
  typedef short Shorts8 __attribute__((vector_size(16)));
  if constexpr (kAreBytes) return (Wide)__builtin_ia32_pmovzxbw256((Bytes)narrow);
  return (Wide)__builtin_ia32_pmovzxwd256((Shorts8)narrow);
#else
  static_cast<void>(kAreBytes);
  return __builtin_convertvector(narrow, Wide);
#endif
}
template <class V>
[[gnu::always_inline]] inline uint64_t sum_lanes(V words) {
  uint64_t lanes[kWidth / 8], sum = 0;
  __builtin_memcpy(lanes, &words, kWidth);
  for (const uint64_t lane : lanes) sum += lane;
  return sum;
}
/// Returns the sum of all bytes.
[[gnu::always_inline]] inline uint64_t sum_bytes(Word w) {
  constexpr uint64_t kEven = 0x00FF00FF00FF00FFu;
  Word pairs = (w & kEven) + (w >> 8 & kEven);
  pairs += pairs >> 32;
  pairs = (pairs & 0xFFFF) + (pairs >> 16 & 0xFFFF);
  return sum_lanes(pairs);
}

[[gnu::always_inline]] inline uint64_t sum_shorts(Word w) {
  constexpr uint64_t kEven = 0x0000FFFF0000FFFFu;
  const Word pairs = (w & kEven) + (w >> 16 & kEven);
  return sum_lanes((pairs & 0xFFFFFFFFu) + (pairs >> 32));
}

/// Adds the numbers of codes that have exactly the bits of an index. `with` has the numbers of those that
/// have at least them.
[[gnu::always_inline]] inline void add_exact(uint64_t (&with)[16], uint64_t (&codes)[16]) {
  for (int bit = 1; bit < 16; bit *= 2) {
    for (int i = 0; i < 16; ++i) {
      if ((i & bit) == 0) with[i] -= with[i | bit];
    }
  }
  for (int i = 0; i < 16; ++i) codes[i] += with[i];
}

/// Adds whole words. A code's four bits are four masks, whose products are counted: how many codes have bits
/// 0 and 2, for example. A nibble counts up to fifteen, a byte up to 255.
inline void add_code_words(const uint8_t* bytes, uint64_t words, CodeCounts& counts) {
  constexpr uint64_t kUnits = 0x1111111111111111u, kLow = 0x0F0F0F0F0F0F0F0Fu;
  constexpr int kProducts = 16, kNibble = 15, kRounds = 8;
  uint64_t with[kProducts] = {};  // number of codes that have all bits of the index
  Mask zero = {}, not_full = {};
  for (uint64_t at = 0; at < words;) {
    Word wide[kProducts] = {};
    for (int round = 0; round < kRounds && at < words; ++round) {
      const uint64_t end = at + kNibble < words ? at + kNibble : words;
      Word n1 = {}, n2 = {}, n3 = {}, n4 = {}, n5 = {}, n6 = {}, n7 = {}, n8 = {}, n9 = {}, n10 = {},
           n11 = {}, n12 = {}, n13 = {}, n14 = {}, n15 = {};
      for (; at < end; ++at) {
        const Word w = load(bytes + at * kWidth);
        const Word b0 = w & kUnits, b1 = w >> 1 & kUnits, b2 = w >> 2 & kUnits, s = w >> 3 & kUnits;
        const Word b01 = b0 & b1, b02 = b0 & b2, b12 = b1 & b2, b012 = b01 & b2;
        n1 += b0;
        n2 += b1;
        n3 += b01;
        n4 += b2;
        n5 += b02;
        n6 += b12;
        n7 += b012;
        n8 += s;
        n9 += b0 & s;
        n10 += b1 & s;
        n11 += b01 & s;
        n12 += b2 & s;
        n13 += b02 & s;
        n14 += b12 & s;
        n15 += b012 & s;
        zero += (b0 | b1 | b2) == Word{};
        not_full += b012 == Word{};
      }
      const Word all[kProducts] = {Word{}, n1, n2, n3, n4, n5, n6, n7, n8, n9, n10, n11, n12, n13, n14, n15};
      for (int i = 1; i < kProducts; ++i) wide[i] += (all[i] & kLow) + (all[i] >> 4 & kLow);
    }
    for (int i = 1; i < kProducts; ++i) with[i] += sum_bytes(wide[i]);
  }
  with[0] = words * kWidth * 2;
  add_exact(with, counts.codes);
  // True is -1.
  counts.zero_blocks -= sum_lanes(zero);
  counts.full_blocks += words * (kWidth / 8) + sum_lanes(not_full);
}

using AddCodes = void(const uint8_t* bytes, uint64_t words, CodeCounts& counts);

/// `add` adds whole vectors.
template <AddCodes* add = add_code_words>
inline void codes(const uint8_t* bytes, uint64_t size, CodeCounts& counts) {
  const uint64_t words = size / kWidth;
  add(bytes, words, counts);
  for (uint64_t at = words * kWidth; at < size; at += 8) {
    const uint64_t count = size - at < 8 ? size - at : 8;
    unsigned any = 0;
    bool full = false;
    for (uint64_t i = at; i < at + count; ++i) {
      for (int nibble = 0; nibble < 2; ++nibble) {
        const unsigned code = bytes[i] >> (4 * nibble) & 15u;
        ++counts.codes[code];
        any |= code & 7u;
        full = full || (code & 7u) == 7;
      }
    }
    if (count < 8) break;
    counts.zero_blocks += any == 0;
    counts.full_blocks += full;
  }
}

typedef uint8_t WordBytes __attribute__((vector_size(kWidth)));

/// Adds the upper halves of bytes.
inline void add_upper_words(const uint8_t* bytes, uint64_t words, uint64_t (&upper)[16]) {
  constexpr uint64_t kUnits = 0x0101010101010101u;
  constexpr uint64_t kRun = 255;  // a byte counts up to 255
  uint64_t with[16] = {};
  for (uint64_t at = 0; at < words;) {
    const uint64_t end = words - at < kRun ? words : at + kRun;
    Word n[16] = {};
    for (; at < end; ++at) {
      const Word w = load(bytes + at * kWidth);
      const Word b0 = w >> 4 & kUnits, b1 = w >> 5 & kUnits, b2 = w >> 6 & kUnits, s = w >> 7 & kUnits;
      const Word b01 = b0 & b1, b02 = b0 & b2, b12 = b1 & b2, b012 = b01 & b2;
      n[1] += b0;
      n[2] += b1;
      n[3] += b01;
      n[4] += b2;
      n[5] += b02;
      n[6] += b12;
      n[7] += b012;
      n[8] += s;
      n[9] += b0 & s;
      n[10] += b1 & s;
      n[11] += b01 & s;
      n[12] += b2 & s;
      n[13] += b02 & s;
      n[14] += b12 & s;
      n[15] += b012 & s;
    }
    for (int i = 1; i < 16; ++i) with[i] += sum_bytes(n[i]);
  }
  with[0] = words * kWidth;
  add_exact(with, upper);
}

/// Adds the numbers of zeros and of the largest numbers.
inline void add_ends(const uint8_t* bytes, uint64_t words, Fp8Counts& counts) {
  constexpr uint64_t kRun = 16;
  for (uint64_t begin = 0; begin < words; begin += kRun) {
    const uint64_t end = words - begin < kRun ? words : begin + kRun;
    WordBytes most = {};  // the largest of the magnitudes minus one, which is 255 for zero
    for (uint64_t at = begin; at < end; ++at) {
      const WordBytes less = ((WordBytes)load(bytes + at * kWidth) & uint8_t{0x7F}) - uint8_t{1};
      most = less > most ? less : most;
    }
    const auto some = (Word)(most >= uint8_t{0x7C});
    uint64_t any = 0;
    for (int lane = 0; lane < kWidth / 8; ++lane) any |= some[lane];
    if (any == 0) continue;  // as nearly always
    WordBytes zero = {}, minus = {}, full = {}, next = {};
    for (uint64_t at = begin; at < end; ++at) {  // true is -1
      const auto w = (WordBytes)load(bytes + at * kWidth);
      const WordBytes magnitude = w & uint8_t{0x7F};
      zero -= (WordBytes)(magnitude == uint8_t{0});
      minus -= (WordBytes)(w == uint8_t{0x80});
      full -= (WordBytes)(magnitude == uint8_t{0x7E});
      next -= (WordBytes)(magnitude == uint8_t{0x7D});
    }
    counts.zeros += sum_bytes((Word)zero);
    counts.negative_zeros += sum_bytes((Word)minus);
    counts.full += sum_bytes((Word)full);
    counts.next += sum_bytes((Word)next);
  }
}

using AddUpper = void(const uint8_t* bytes, uint64_t words, uint64_t (&upper)[16]);

/// `add` adds the upper halves of whole vectors.
template <AddUpper* add = add_upper_words>
inline void fp8(const uint8_t* bytes, uint64_t size, Fp8Counts& counts) {
  const uint64_t words = size / kWidth;
  add(bytes, words, counts.upper);
  add_ends(bytes, words, counts);
  for (uint64_t i = words * kWidth; i < size; ++i) {
    const unsigned magnitude = bytes[i] & 0x7Fu;
    ++counts.upper[bytes[i] >> 4];
    counts.zeros += magnitude == 0;
    counts.negative_zeros += bytes[i] == 0x80;
    counts.full += magnitude == 0x7E;
    counts.next += magnitude == 0x7D;
  }
}

inline uint8_t largest(const uint8_t* bytes, uint64_t size) {
  const uint64_t words = size / kWidth;
  WordBytes most = {};
  for (uint64_t at = 0; at < words; ++at) {
    const WordBytes magnitude = (WordBytes)load(bytes + at * kWidth) & uint8_t{0x7F};
    most = magnitude > most ? magnitude : most;
  }
  uint8_t lanes[kWidth], largest = 0;
  __builtin_memcpy(lanes, &most, kWidth);
  for (const uint8_t lane : lanes) largest = lane > largest ? lane : largest;
  for (uint64_t i = words * kWidth; i < size; ++i) {
    const auto magnitude = static_cast<uint8_t>(bytes[i] & 0x7F);
    largest = magnitude > largest ? magnitude : largest;
  }
  return largest;
}

}  // namespace counting
}  // namespace
}  // namespace twofour
