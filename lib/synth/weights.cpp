#include "lib/synth/weights.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "lib/base/io/hash.h"

namespace twofour {
namespace {

constexpr uint64_t kGolden = 0x9E3779B97F4A7C15u;

/// The finalizer of SplitMix64. Every bit of the result depends on every bit of `x`.
uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

/// A draw is 16 random bits, which are a sign and the index of a quantile. The quantile is the magnitude.
constexpr unsigned kMagnitudes = 1u << 15;
constexpr unsigned kMagnitudeMask = kMagnitudes - 1;

/// The quantiles of |t| for Student's t with 6 degrees of freedom, scaled to variance 1, as float bits. With
/// s = t / sqrt(t^2 + 6), the distribution function of |t| is s (15 - 10 s^2 + 3 s^4) / 8, so basic
/// operations and a square root suffice. Unlike a library's sine or logarithm, these give the same result on
/// any machine. Each statement has one operation, because a compiler may fuse a product and a sum within one
/// statement and round differently.
std::array<uint32_t, kMagnitudes> make_quantiles() {
  std::array<uint32_t, kMagnitudes> bits{};
  double s = 0;
  for (unsigned i = 0; i < kMagnitudes; ++i) {
    const double target = 8.0 * (i + 0.5) / kMagnitudes;
    // The function is concave, so Newton's steps from the previous quantile climb and never overshoot.
    for (int step = 0; step < 16; ++step) {
      const double s2 = s * s;
      const double a = 3.0 * s2;
      const double b = a - 10.0;
      const double c = b * s2;
      const double d = c + 15.0;
      const double f = d * s;
      const double left = target - f;
      const double e = 1.0 - s2;
      const double slope = 15.0 * e * e;
      const double move = left / slope;
      s = s + move;
    }
    const double s2 = s * s;
    const double rest = 1.0 - s2;
    bits[i] = std::bit_cast<uint32_t>(static_cast<float>(2.0 * s / std::sqrt(rest)));
  }
  return bits;
}

const std::array<uint32_t, kMagnitudes>& quantiles() {
  static const std::array<uint32_t, kMagnitudes> bits = make_quantiles();
  return bits;
}

/// The standard deviation of a row, which is 0.02 times a factor from 0.75 to 1.25.
float row_scale(uint64_t row_key) {
  const auto factor = static_cast<float>(49152 + (mix(~row_key) & 32767));
  return factor * (0.02f / 65536.0f);
}

using Draws = std::array<uint16_t, SynthWeights::kPiece>;

/// Makes draws [first, first + count) of a row, four from each 64-bit word. `count` is rounded up to a
/// multiple of four.
void draw_bits(uint64_t row_key, int64_t first, int64_t count, Draws& draws) {
  static_assert(std::endian::native == std::endian::little, "draws fill a word from its low bits up");
  const uint64_t start = row_key + static_cast<uint64_t>(first / 4) * kGolden;
  const auto words = static_cast<size_t>((count + 3) / 4);
  for (size_t i = 0; i < words; ++i) {
    const uint64_t word = mix(start + i * kGolden);
    std::memcpy(draws.data() + 4 * i, &word, sizeof(word));
  }
}

}  // namespace

SynthWeights::SynthWeights(uint64_t seed, std::string_view tensor)
    : key_(mix(hash_text(tensor).low ^ mix(seed + kGolden))) {}

uint64_t SynthWeights::row_key(int64_t row) const { return mix(key_ + static_cast<uint64_t>(row) * kGolden); }

void SynthWeights::draw(int64_t row, int64_t first, std::span<float> out) const {
  const uint64_t key = row_key(row);
  const float scale = row_scale(key);
  const uint32_t* table = quantiles().data();
  Draws draws;
  draw_bits(key, first, static_cast<int64_t>(out.size()), draws);
  for (size_t i = 0; i < out.size(); ++i) {
    const uint32_t d = draws[i];
    const uint32_t sign = (d & kMagnitudes) << 16;
    out[i] = std::bit_cast<float>(table[d & kMagnitudeMask] | sign) * scale;
  }
}

float SynthWeights::row_amax(int64_t row, int64_t count) const {
  const uint64_t key = row_key(row);
  Draws draws;
  int16_t top = 0;
  for (int64_t first = 0; first < count; first += kPiece) {
    const auto piece = static_cast<size_t>(std::min(kPiece, count - first));
    draw_bits(key, first, static_cast<int64_t>(piece), draws);
    for (size_t i = 0; i < piece; ++i) {
      top = std::max(top, static_cast<int16_t>(draws[i] & kMagnitudeMask));
    }
  }
  // Quantiles rise with their index, and so do their rounded products with a positive scale.
  return std::bit_cast<float>(quantiles()[static_cast<size_t>(top)]) * row_scale(key);
}

}  // namespace twofour
