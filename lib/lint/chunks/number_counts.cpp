#include "lib/lint/chunks/number_counts.h"

#include <algorithm>
#include <cmath>

#include "kernels/device/isa.h"

namespace twofour {

void ByteCounts::add(std::span<const uint8_t> bytes) {
  auto& [a, b, c, d] = tables_;
  size_t i = 0;
  for (; i + 8 <= bytes.size(); i += 8) {
    const uint64_t w = word_of(&bytes[i]);
    ++a[w & 0xFF];
    ++b[w >> 8 & 0xFF];
    ++c[w >> 16 & 0xFF];
    ++d[w >> 24 & 0xFF];
    ++a[w >> 32 & 0xFF];
    ++b[w >> 40 & 0xFF];
    ++c[w >> 48 & 0xFF];
    ++d[w >> 56];
  }
  for (; i < bytes.size(); ++i) ++a[bytes[i]];
}

void ByteCounts::move_to(NumberKind kind, Chunk& chunk, std::array<uint64_t, 256>& all) {
  std::array<uint32_t, 256> sums{};
  for (const auto& table : tables_) {
    for (size_t b = 0; b < sums.size(); ++b) sums[b] += table[b];
  }
  tables_ = {};
  for (size_t b = 0; b < sums.size(); ++b) {
    all[b] += sums[b];
    chunk.numbers += sums[b];
    chunk.classes[b >> 4] += sums[b];
    if (b > 0x80) chunk.negative += sums[b];
  }
  chunk.zeros += sums[0];
  (kind == NumberKind::kE4m3 ? chunk.zeros : chunk.negative) += sums[0x80];
}

const CountOps& best_count_ops() {
  static const CountOps& ops = count_ops(best_isa());
  return ops;
}

void or_into(std::vector<uint8_t>& to, const uint8_t* from) {
  uint8_t* const out = to.data();
  const size_t count = to.size();
#pragma omp simd
  for (size_t i = 0; i < count; ++i) out[i] = static_cast<uint8_t>(out[i] | from[i]);
}

void add_codes(NumberKind kind, const CodeCounts& codes, Chunk& chunk) {
  const bool integers = kind == NumberKind::kInt4;
  for (size_t c = 0; c < chunk.classes.size(); ++c) {
    chunk.classes[c] += static_cast<uint32_t>(codes.codes[c]);
    chunk.numbers += codes.codes[c];
    if (integers ? c == 8 : c % 8 == 0) chunk.zeros += codes.codes[c];
    if (integers ? c < 8 : c > 8) chunk.negative += codes.codes[c];
  }
}

void add_sixes(std::span<const uint8_t> bytes, Chunk& chunk, std::array<uint64_t, 256>& all) {
  constexpr unsigned kCodes = 64, kSign = 0x20;
  std::array<std::array<uint32_t, kCodes>, 4> tables{};
  for (size_t i = 0; i + 3 <= bytes.size(); i += 3) {
    const uint32_t word = bytes[i] | uint32_t{bytes[i + 1]} << 8 | uint32_t{bytes[i + 2]} << 16;
    for (unsigned j = 0; j < tables.size(); ++j) ++tables[j][word >> (6 * j) & (kCodes - 1)];
  }
  for (unsigned code = 0; code < kCodes; ++code) {
    uint32_t count = 0;
    for (const auto& table : tables) count += table[code];
    all[code] += count;
    chunk.numbers += count;
    chunk.classes[code >> 2] += count;
    if ((code & ~kSign) == 0) {
      chunk.zeros += count;
    } else if ((code & kSign) != 0) {
      chunk.negative += count;
    }
  }
}

void add_fp8(const Fp8Counts& counts, Chunk& chunk) {
  uint64_t with_sign = 0;
  for (size_t c = 0; c < chunk.classes.size(); ++c) {
    chunk.classes[c] += static_cast<uint32_t>(counts.upper[c]);
    chunk.numbers += counts.upper[c];
    if (c >= 8) with_sign += counts.upper[c];
  }
  chunk.zeros += counts.zeros;
  chunk.negative += with_sign - std::min(with_sign, counts.negative_zeros);
}

FloatCounts sum_finite(std::span<const float> numbers) {
  FloatCounts sums;
  for (const float number : numbers) {
    const float x = std::fabs(number);
    if (!std::isfinite(x)) continue;
    sums.energy += double{x} * double{x};
    sums.amax = std::max(sums.amax, x);
  }
  return sums;
}

bool are_on_grid(std::span<const float> numbers) {
  constexpr float kMost = 15;
  return std::ranges::all_of(numbers, [](float x) {
    const float a = std::fabs(x);
    return a <= kMost && (a == std::floor(a) || a == 0.5f || a == 1.5f);
  });
}

}  // namespace twofour
