#pragma once
#include "kernels/counts/count_vector.h"

// Counts and sums of floats; see count_vector.h.

namespace twofour {
namespace {
namespace counting {

constexpr int kFloats = kWidth / 4, kFloatLanes = 16, kFloatVectors = kFloatLanes / kFloats;
constexpr uint64_t kHalves = kWidth / 2;
constexpr uint64_t kFloatRun =
    1u << 16;  ///< for so many numbers, counters of 32 bits, or of 16 by lanes, suffice
typedef float Floats __attribute__((vector_size(kWidth)));
typedef uint32_t Bits __attribute__((vector_size(kWidth)));
typedef int32_t Ints __attribute__((vector_size(kWidth)));
typedef double Doubles __attribute__((vector_size(kWidth)));
typedef uint16_t NarrowHalves __attribute__((vector_size(kWidth / 2)));
typedef uint16_t Halves __attribute__((vector_size(kWidth)));
typedef int16_t SignedHalves __attribute__((vector_size(kWidth)));

[[gnu::always_inline]] inline Halves load_halves(const uint16_t* numbers) {
  Halves h;
  __builtin_memcpy(&h, numbers, kWidth);
  return h;
}
[[gnu::always_inline]] inline Bits load_bits(const uint16_t* numbers) {
  NarrowHalves h;
  __builtin_memcpy(&h, numbers, sizeof(h));
  return widen<Bits>(h) << 16;
}
[[gnu::always_inline]] inline Bits load_bits(const float* numbers) {
  Bits b;
  __builtin_memcpy(&b, numbers, sizeof(b));
  return b;
}

/// The range of magnitudes, by lanes. They are positive as signed numbers, which every processor compares.
struct Ranges {
  SignedHalves least = SignedHalves{} + int16_t{0x7FFF}, most = {};

  [[gnu::always_inline]] void add(Halves w) {
    const auto magnitude = (SignedHalves)(w & uint16_t{0x7FFF});
    least = magnitude < least ? magnitude : least;
    most = magnitude > most ? magnitude : most;
  }
  [[gnu::always_inline]] void move_to(HalfRange& range) const {
    uint16_t low[kHalves], high[kHalves];
    __builtin_memcpy(low, &least, kWidth);
    __builtin_memcpy(high, &most, kWidth);
    for (uint64_t lane = 0; lane < kHalves; ++lane) {
      range.least = low[lane] < range.least ? low[lane] : range.least;
      range.most = high[lane] > range.most ? high[lane] : range.most;
    }
  }
};

[[gnu::always_inline]] inline void add_half(uint16_t number, HalfRange& range) {
  const auto magnitude = static_cast<uint16_t>(number & 0x7FFFu);
  range.least = magnitude < range.least ? magnitude : range.least;
  range.most = magnitude > range.most ? magnitude : range.most;
  range.bits = static_cast<uint16_t>(range.bits | number);
}

inline HalfRange halves(const uint16_t* numbers, uint64_t count) {
  HalfRange range;
  Ranges ranges;
  Halves bits = {};
  uint64_t i = 0;
  for (; i + kHalves <= count; i += kHalves) {
    const Halves w = load_halves(numbers + i);
    bits |= w;
    ranges.add(w);
  }
  if (i > 0) ranges.move_to(range);
  for (uint64_t lane = 0; lane < kHalves; ++lane) range.bits = static_cast<uint16_t>(range.bits | bits[lane]);
  for (; i < count; ++i) add_half(numbers[i], range);
  return range;
}

/// Adds sixteen sums in their order.
[[gnu::always_inline]] inline void add_energy(const Floats (&energy)[kFloatVectors], FloatCounts& counts) {
  float sums[kFloatLanes];
  __builtin_memcpy(sums, energy, sizeof(sums));
  for (const float sum : sums) counts.energy += static_cast<double>(sum);
}

/// Adds the numbers of zeros of either sign and of -0.
inline void count_zeros(const uint16_t* numbers, uint64_t count, uint64_t& zeros, uint64_t& minus_zeros) {
  Halves zero = {}, minus = {};
  uint64_t i = 0;
  for (; i + kHalves <= count; i += kHalves) {  // true is -1
    const Halves w = load_halves(numbers + i);
    zero -= (Halves)((w & uint16_t{0x7FFF}) == uint16_t{0});
    minus -= (Halves)(w == uint16_t{0x8000});
  }
  zeros += sum_shorts((Word)zero);
  minus_zeros += sum_shorts((Word)minus);
  for (; i < count; ++i) {
    zeros += (numbers[i] & 0x7FFFu) == 0;
    minus_zeros += numbers[i] == 0x8000;
  }
}

/// Adds the counts of a run of numbers that its range and its number of signs leave open.
inline void finish_halves(const uint16_t* numbers, uint64_t count, const HalfRange& range, uint64_t signs,
                          FloatCounts& counts) {
  uint64_t minus_zeros = 0;
  if (range.least == 0) count_zeros(numbers, count, counts.zeros, minus_zeros);
  counts.negative += signs - minus_zeros;
  counts.range.least = range.least < counts.range.least ? range.least : counts.range.least;
  counts.range.most = range.most > counts.range.most ? range.most : counts.range.most;
  counts.range.bits = static_cast<uint16_t>(counts.range.bits | range.most | (signs > 0 ? 0x8000u : 0u));
  constexpr uint16_t kInfinity = 0x7F80;
  const auto add = [&](unsigned magnitude) __attribute__((always_inline)) {
    const uint32_t bits = magnitude << 16;
    float x;
    __builtin_memcpy(&x, &bits, sizeof(x));
    counts.amax = x > counts.amax ? x : counts.amax;
  };
  if (range.most <= kInfinity) return add(range.most);
  for (uint64_t i = 0; i < count; ++i) {  // NaN is not larger than any number
    if ((numbers[i] & 0x7FFFu) <= kInfinity) add(numbers[i] & 0x7FFFu);
  }
}

/// Adds a run of `count` numbers of `kRows` lines, which are `stride` numbers apart.
template <int kRows, bool kHasColumns>
[[gnu::always_inline]] inline void add_halves(const uint16_t* numbers, uint64_t stride, uint64_t count,
                                              float* columns, FloatCounts* counts) {
  constexpr uint64_t kStep = kHalves > kFloatLanes ? kHalves : kFloatLanes;
  Floats energy[kRows][kFloatVectors] = {};
  Ranges ranges[kRows];
  Halves signs[kRows] = {};
  const auto add_energies = [&](const uint16_t* from, uint64_t apart, float* to)
      __attribute__((always_inline)) {
#pragma GCC unroll 8
    for (uint64_t v = 0; v < kStep / kFloats; ++v) {
      Floats sums = {};
      if (kHasColumns) __builtin_memcpy(&sums, to + v * kFloats, kWidth);
#pragma GCC unroll 4
      for (uint64_t r = 0; r < kRows; ++r) {
        const auto x = (Floats)load_bits(from + r * apart + v * kFloats);
        const Floats square = x * x;
        energy[r][v % kFloatVectors] += square;
        sums += square;
      }
      if (kHasColumns) __builtin_memcpy(to + v * kFloats, &sums, kWidth);
    }
  };
  uint64_t i = 0;
  for (; i + kStep <= count; i += kStep) {
    add_energies(numbers + i, stride, columns + i);
#pragma GCC unroll 4
    for (uint64_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
      for (uint64_t at = 0; at < kStep; at += kHalves) {
        const Halves w = load_halves(numbers + r * stride + i + at);
        ranges[r].add(w);
        signs[r] += w >> 15;
      }
    }
  }
  uint64_t last_signs[kRows] = {};
  HalfRange all[kRows];
  if (i > 0) {
    for (int r = 0; r < kRows; ++r) ranges[r].move_to(all[r]);
  }
  if (i < count) {  // zeros fill the last vectors
    uint16_t last[kRows][kStep] = {};
    float column[kStep] = {};
    for (uint64_t r = 0; r < kRows; ++r) {
      for (uint64_t at = i; at < count; ++at) {
        const uint16_t number = numbers[r * stride + at];
        last[r][at - i] = number;
        add_half(number, all[r]);
        last_signs[r] += number >> 15;
      }
    }
    if (kHasColumns) __builtin_memcpy(column, columns + i, (count - i) * sizeof(float));
    add_energies(last[0], kStep, column);
    if (kHasColumns) __builtin_memcpy(columns + i, column, (count - i) * sizeof(float));
  }
  for (uint64_t r = 0; r < kRows; ++r) {
    add_energy(energy[r], counts[r]);
    finish_halves(numbers + r * stride, count, all[r], sum_shorts((Word)signs[r]) + last_signs[r], counts[r]);
  }
}

template <bool kHasColumns>
inline void add_half_lines(const uint16_t* numbers, uint64_t count, uint64_t lines, float* columns,
                           FloatCounts* counts) {
  constexpr uint64_t kRows = kWidth == 64 ? 4 : kWidth == 32 ? 2 : 1;
  for (uint64_t begin = 0; begin < count; begin += kFloatRun) {
    const uint64_t some = count - begin < kFloatRun ? count - begin : kFloatRun;
    float* const to = kHasColumns ? columns + begin : nullptr;
    const uint16_t* from = numbers + begin;
    uint64_t line = 0;
    for (; line + kRows <= lines; line += kRows)
      add_halves<kRows, kHasColumns>(from + line * count, count, some, to, counts + line);
    for (; line < lines; ++line)
      add_halves<1, kHasColumns>(from + line * count, count, some, to, counts + line);
  }
}

inline void bf16(const uint16_t* numbers, uint64_t count, uint64_t lines, float* columns,
                 FloatCounts* counts) {
  if (columns == nullptr) return add_half_lines<false>(numbers, count, lines, columns, counts);
  add_half_lines<true>(numbers, count, lines, columns, counts);
}

/// Adds numbers. Sixteen sums are added to in turn, in every instruction set.
inline void f32(const float* numbers, uint64_t count, float* columns, FloatCounts& counts) {
  constexpr int kLanes = kFloatLanes, kVectors = kFloatVectors;
  for (uint64_t begin = 0; begin < count; begin += kFloatRun) {
    const uint64_t end = count - begin < kFloatRun ? count : begin + kFloatRun;
    Floats energy[kVectors] = {}, amax[kVectors] = {};
    Ints zeros[kVectors] = {}, negative[kVectors] = {};
    uint64_t i = begin;
    const auto add = [&](const float* from, float* column) __attribute__((always_inline)) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        const Bits bits = load_bits(from + v * kFloats), magnitude = bits & 0x7FFFFFFFu;
        const auto x = (Floats)magnitude, square = x * x;
        energy[v] += square;
        amax[v] = x > amax[v] ? x : amax[v];
        const Ints is_zero = magnitude == 0;
        zeros[v] += is_zero;
        negative[v] += ((Ints)bits >> 31) & ~is_zero;
        Floats sums;
        __builtin_memcpy(&sums, column + v * kFloats, kWidth);
        sums += square;
        __builtin_memcpy(column + v * kFloats, &sums, kWidth);
      }
    };
    for (; i + kLanes <= end; i += kLanes) add(numbers + i, columns + i);
    if (i < end) {  // zeros fill the last vectors
      float last[kLanes] = {}, column[kLanes] = {};
      __builtin_memcpy(last, numbers + i, (end - i) * sizeof(float));
      __builtin_memcpy(column, columns + i, (end - i) * sizeof(float));
      add(last, column);
      __builtin_memcpy(columns + i, column, (end - i) * sizeof(float));
      counts.zeros -= static_cast<uint64_t>(kLanes) - (end - i);
    }
    float largest[kLanes];
    int32_t zero[kLanes], minus[kLanes];
    add_energy(energy, counts);
    __builtin_memcpy(largest, amax, sizeof(largest));
    __builtin_memcpy(zero, zeros, sizeof(zero));
    __builtin_memcpy(minus, negative, sizeof(minus));
    for (int lane = 0; lane < kLanes; ++lane) {  // true is -1
      counts.amax = largest[lane] > counts.amax ? largest[lane] : counts.amax;
      counts.zeros += static_cast<uint64_t>(-zero[lane]);
      counts.negative += static_cast<uint64_t>(-minus[lane]);
    }
  }
}

/// Adds the logarithms of magnitudes. Mantissas in numbers of double precision are multiplied, those of even
/// and of odd positions apart.
template <class T, bool kHasColumns>
inline void add_levels(const T* numbers, uint64_t count, float* sums, uint32_t* counts, LevelSums& line,
                       LogSums& logs) {
  constexpr int32_t kLeast = 8, kMost = 0xFF * 8, kBias = 127 * 8;
  constexpr uint64_t kOne = 0x3FF0000000000000u, kMantissa = 0x7FFFFFull << 29;
  Ints eighths = {}, used = {}, exponents = {};
  Doubles even[kFloatVectors], odd[kFloatVectors];
  __builtin_memcpy(even, logs.products, sizeof(even));
  __builtin_memcpy(odd, logs.products + kFloatLanes / 2, sizeof(odd));
  const auto add = [&](const T* from, float* sum, uint32_t* number) __attribute__((always_inline)) {
#pragma GCC unroll 4
    for (int v = 0; v < kFloatVectors; ++v) {
      const Bits bits = load_bits(from + v * kFloats) & 0x7FFFFFFFu;
      const auto level = (Ints)(bits >> 20);
      const Ints is_used = (level >= kLeast) & (level < kMost), own = (level - kBias) & is_used;
      eighths += own;
      used += is_used;
      exponents += own >> 3;
      const auto rest = (Word)(bits & (Bits)is_used);
      even[v] *= (Doubles)((rest << 29 & kMantissa) | kOne);
      odd[v] *= (Doubles)((rest >> 3 & kMantissa) | kOne);
      if (!kHasColumns) continue;
      Floats column;
      Ints some;
      __builtin_memcpy(&column, sum + v * kFloats, kWidth);
      __builtin_memcpy(&some, number + v * kFloats, kWidth);
      column += __builtin_convertvector(own, Floats) * 0.125f;
      some -= is_used;  // true is -1
      __builtin_memcpy(sum + v * kFloats, &column, kWidth);
      __builtin_memcpy(number + v * kFloats, &some, kWidth);
    }
  };
  uint64_t i = 0;
  for (; i + kFloatLanes <= count; i += kFloatLanes) add(numbers + i, sums + i, counts + i);
  if (i < count) {  // zeros, which are not counted, fill the last vectors
    T last[kFloatLanes] = {};
    float sum[kFloatLanes] = {};
    uint32_t number[kFloatLanes] = {};
    __builtin_memcpy(last, numbers + i, (count - i) * sizeof(T));
    if (kHasColumns) {
      __builtin_memcpy(sum, sums + i, (count - i) * sizeof(float));
      __builtin_memcpy(number, counts + i, (count - i) * sizeof(uint32_t));
    }
    add(last, sum, number);
    if (kHasColumns) {
      __builtin_memcpy(sums + i, sum, (count - i) * sizeof(float));
      __builtin_memcpy(counts + i, number, (count - i) * sizeof(uint32_t));
    }
  }
  __builtin_memcpy(logs.products, even, sizeof(even));
  __builtin_memcpy(logs.products + kFloatLanes / 2, odd, sizeof(odd));
  for (int lane = 0; lane < kFloats; ++lane) {
    line.eighths += eighths[lane];
    line.count += static_cast<uint64_t>(-used[lane]);
    logs.exponents += exponents[lane];
  }
}

template <class T>
inline void levels(const T* numbers, uint64_t count, float* sums, uint32_t* counts, LevelSums& line,
                   LogSums& logs) {
  if (sums == nullptr) return add_levels<T, false>(numbers, count, sums, counts, line, logs);
  add_levels<T, true>(numbers, count, sums, counts, line, logs);
}

}  // namespace counting
}  // namespace
}  // namespace twofour
