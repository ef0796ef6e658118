#pragma once
#include "kernels/counts/count_vector.h"

// Counts and sums of bytes; see count_vector.h.

namespace twofour {
namespace {
namespace counting {

constexpr uint64_t kShorts = kWidth / 2;
typedef uint16_t Shorts __attribute__((vector_size(kWidth)));
typedef uint16_t EightShorts __attribute__((vector_size(16)));
typedef uint8_t NarrowBytes __attribute__((vector_size(kWidth / 2)));

/// Adds the bytes. Four tables are filled in turn, since a processor waits if it counts the same byte twice
/// in a row.
inline void histogram(const uint8_t* bytes, uint64_t size, uint64_t* counts) {
  constexpr uint64_t kRun = 1u << 30;
  for (uint64_t begin = 0; begin < size; begin += kRun) {
    const uint64_t end = size - begin < kRun ? size : begin + kRun;
    uint32_t tables[4][256] = {};
    uint64_t i = begin;
    for (; i + 8 <= end; i += 8) {
      uint64_t w;
      __builtin_memcpy(&w, bytes + i, sizeof(w));
#pragma GCC unroll 8
      for (int b = 0; b < 8; ++b) ++tables[b % 4][w >> (8 * b) & 0xFF];
    }
    for (; i < end; ++i) ++tables[0][bytes[i]];
    for (int b = 0; b < 256; ++b)
      counts[b] += uint64_t{tables[0][b]} + tables[1][b] + tables[2][b] + tables[3][b];
  }
}

inline bool are_within(const uint8_t* bytes, uint64_t size, uint8_t least, uint8_t most) {
  const auto range = static_cast<uint8_t>(most - least);
  uint64_t at = 0;
  WordBytes above = {};
  for (; at + kWidth <= size; at += kWidth) {
    const WordBytes w = (WordBytes)load(bytes + at) - least;  // smaller ones become large
    above = w > above ? w : above;
  }
  const auto outside = (Word)(above > range);
  uint64_t any = 0;
  for (int lane = 0; lane < kWidth / 8; ++lane) any |= outside[lane];
  for (; at < size; ++at) any |= static_cast<uint8_t>(bytes[at] - least) > range;
  return any == 0;
}

typedef uint32_t SumBits __attribute__((vector_size(kWidth)));

inline SquareSums squares(const uint8_t* bytes, uint64_t count, uint16_t* sums) {
  constexpr uint64_t kRun = 256 * kShorts;
  SquareSums all;
  uint64_t i = 0;
  while (i + kShorts <= count) {
    const uint64_t end = count - i < kRun ? count / kShorts * kShorts : i + kRun;
    Shorts line = {};
    SumBits low = {}, high = {};
    for (; i < end; i += kShorts) {
      NarrowBytes stored;
      __builtin_memcpy(&stored, bytes + i, kShorts);
      const Shorts wide = widen<Shorts>(stored);
      const auto square = (SumBits)(wide * wide);  // at most 255 * 255, which sixteen bits hold
      line += wide;
      low += square & 0xFFFFu;
      high += square >> 16;
      Shorts column;
      __builtin_memcpy(&column, sums + i, kWidth);
      column += wide;
      __builtin_memcpy(sums + i, &column, kWidth);
    }
    const auto a = (Word)low, b = (Word)high;
    all.sum += sum_shorts((Word)line);
    all.squares += sum_lanes((a & 0xFFFFFFFFu) + (a >> 32) + (b & 0xFFFFFFFFu) + (b >> 32));
  }
  for (; i < count; ++i) {
    const unsigned x = bytes[i];
    all.sum += x;
    all.squares += x * x;
    sums[i] = static_cast<uint16_t>(sums[i] + x);
  }
  return all;
}

/// Adds `kCount` bytes to columns and, by lanes, to those of the line.
template <int kCount, class Wide>
[[gnu::always_inline]] inline void add_bytes(const uint8_t* bytes, uint8_t least, uint16_t* sums,
                                             uint16_t* counts, Wide& line_sums, Wide& line_counts) {
  typedef uint8_t Narrow __attribute__((vector_size(kCount)));
  Narrow stored;
  __builtin_memcpy(&stored, bytes, kCount);
  const Wide wide = __builtin_convertvector(stored, Wide);
  const auto used = (Wide)(wide >= uint16_t{least});
  const Wide some = wide & used, one = used & 1;
  Wide column;
  __builtin_memcpy(&column, sums, sizeof(Wide));
  column += some;
  __builtin_memcpy(sums, &column, sizeof(Wide));
  __builtin_memcpy(&column, counts, sizeof(Wide));
  column += one;
  __builtin_memcpy(counts, &column, sizeof(Wide));
  line_sums += some;
  line_counts += one;
}

inline ByteSums add_line(const uint8_t* bytes, uint64_t count, uint8_t least, uint16_t* sums,
                         uint16_t* counts) {
  constexpr uint64_t kRun = 256 * kShorts, kEight = 8;
  ByteSums all;
  uint64_t i = 0;
  while (i + kShorts <= count) {
    const uint64_t end = count - i < kRun ? count / kShorts * kShorts : i + kRun;
    Shorts line_sums = {}, line_counts = {};
    for (; i + kShorts <= end; i += kShorts)
      add_bytes<kShorts>(bytes + i, least, sums + i, counts + i, line_sums, line_counts);
    all.sum += sum_shorts((Word)line_sums);
    all.count += sum_shorts((Word)line_counts);
  }
  EightShorts last_sums = {}, last_counts = {};
  for (; i + kEight <= count; i += kEight)
    add_bytes<kEight>(bytes + i, least, sums + i, counts + i, last_sums, last_counts);
  for (uint64_t lane = 0; lane < kEight; ++lane) {
    all.sum += last_sums[lane];
    all.count += last_counts[lane];
  }
  for (; i < count; ++i) {
    if (bytes[i] < least) continue;
    all.sum += bytes[i];
    ++all.count;
    sums[i] = static_cast<uint16_t>(sums[i] + bytes[i]);
    ++counts[i];
  }
  return all;
}

/// True if no byte is smaller than `least`. There are at least as many as a vector has.
[[gnu::always_inline]] inline bool are_least(const uint8_t* bytes, uint64_t size, uint8_t least) {
  auto low = (WordBytes)load(bytes + size - kWidth);
  for (uint64_t at = 0; at + kWidth <= size; at += kWidth) {
    const auto w = (WordBytes)load(bytes + at);
    low = w < low ? w : low;
  }
  const auto some = (Word)(low < least);
  uint64_t any = 0;
  for (int lane = 0; lane < kWidth / 8; ++lane) any |= some[lane];
  return any == 0;
}

constexpr uint64_t kLinesAtOnce = 4;

/// Adds all bytes of four lines to the sums. A line has at least kShorts bytes.
[[gnu::always_inline]] inline void add_lines(const uint8_t* bytes, uint64_t count, uint16_t* sums,
                                             ByteSums* of_lines) {
  constexpr uint64_t kRun = 256 * kShorts;
  const auto add = [&](uint64_t i, Shorts mask, Shorts(&lines)[kLinesAtOnce]) __attribute__((always_inline)) {
    Shorts column;
    __builtin_memcpy(&column, sums + i, kWidth);
#pragma GCC unroll 4
    for (uint64_t l = 0; l < kLinesAtOnce; ++l) {
      NarrowBytes stored;
      __builtin_memcpy(&stored, bytes + l * count + i, kShorts);
      const Shorts wide = widen<Shorts>(stored) & mask;
      column += wide;
      lines[l] += wide;
    }
    __builtin_memcpy(sums + i, &column, kWidth);
  };
  for (uint64_t i = 0; i < count;) {
    const uint64_t whole = count / kShorts * kShorts, end = whole - i < kRun ? whole : i + kRun;
    Shorts lines[kLinesAtOnce] = {};
    for (; i < end; i += kShorts) add(i, ~Shorts{}, lines);
    if (i == whole && whole < count) {  // the last vector ends with the line
      uint16_t lanes[kShorts];
      for (uint64_t lane = 0; lane < kShorts; ++lane)
        lanes[lane] = lane < whole + kShorts - count ? 0 : 0xFFFF;
      Shorts mask;
      __builtin_memcpy(&mask, lanes, kWidth);
      add(count - kShorts, mask, lines);
      i = count;
    }
    // Two sums of a run share a lane.
    Word pairs[kLinesAtOnce];
    for (uint64_t l = 0; l < kLinesAtOnce; ++l) {
      constexpr uint64_t kEven = 0x0000FFFF0000FFFFu;
      const Word sum = ((Word)lines[l] & kEven) + ((Word)lines[l] >> 16 & kEven);
      pairs[l] = (sum & 0xFFFFFFFFu) + (sum >> 32);
    }
    for (uint64_t l = 0; l < kLinesAtOnce; l += 2) {
      const uint64_t both = sum_lanes(pairs[l] + (pairs[l + 1] << 32));
      of_lines[l].sum += both & 0xFFFFFFFFu;
      of_lines[l + 1].sum += both >> 32;
    }
  }
}

inline void bytes(const uint8_t* bytes, uint64_t count, uint64_t lines, uint8_t least, uint16_t* sums,
                  uint16_t* counts, ByteSums* of_lines) {
  uint64_t line = 0, whole = 0;  // lines without small bytes
  for (; line + kLinesAtOnce <= lines && count >= kShorts; line += kLinesAtOnce) {
    const uint8_t* const from = bytes + line * count;
    if (are_least(from, kLinesAtOnce * count, least)) {
      add_lines(from, count, sums, of_lines + line);
      for (uint64_t l = line; l < line + kLinesAtOnce; ++l) of_lines[l].count += count;
      whole += kLinesAtOnce;
      continue;
    }
    for (uint64_t l = line; l < line + kLinesAtOnce; ++l) {
      const ByteSums own = add_line(bytes + l * count, count, least, sums, counts);
      of_lines[l].sum += own.sum;
      of_lines[l].count += own.count;
    }
  }
  for (; line < lines; ++line) {
    const ByteSums own = add_line(bytes + line * count, count, least, sums, counts);
    of_lines[line].sum += own.sum;
    of_lines[line].count += own.count;
  }
  for (uint64_t i = 0; i < count && whole > 0; ++i) counts[i] = static_cast<uint16_t>(counts[i] + whole);
}

}  // namespace counting
}  // namespace
}  // namespace twofour
