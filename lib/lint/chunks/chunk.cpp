#include "lib/lint/chunks/chunk.h"

#include <algorithm>
#include <cmath>

#include "lib/lint/chunks/levels.h"

namespace twofour {
namespace {

constexpr uint64_t kFewNumbers = 4096;  ///< chunks with fewer numbers are not compared
constexpr double kHalf = 0.5;

/// Returns Pearson's statistic against equal shares of sixteen classes.
double unevenness(const Chunk& c) {
  const double expected = static_cast<double>(c.numbers) / 16;
  double sum = 0;
  for (const uint32_t count : c.classes) sum += (count - expected) * (count - expected) / expected;
  return sum;
}

/// True if all classes are equally frequent but for chance. The limit is four standard deviations above the
/// mean of the statistic, which has fifteen degrees of freedom. The codes of weights reach hundreds.
bool is_noise(const Chunk& c) {
  constexpr double kMostOfNoise = 37;
  return c.numbers - c.zeros >= kFewNumbers && unevenness(c) < kMostOfNoise;
}

double negative_share(const Chunk& c) {
  return static_cast<double>(c.negative) / static_cast<double>(c.numbers - c.zeros);
}

double full_share(const Chunk& c) {
  // Blocks with tiny scales, as of dead rows, may have any largest code.
  return std::min(1.0, static_cast<double>(c.full_blocks + c.tiny_scales) / static_cast<double>(c.blocks));
}

/// Returns the shares of codes without zeros, whose number depends on pruning.
std::array<double, 16> shares_of(NumberKind kind, const Chunk& c) {
  std::array<double, 16> shares{};
  double sum = 0;
  for (size_t i = 0; i < shares.size(); ++i) {
    const bool zero = kind == NumberKind::kE2m1 ? i % 8 == 0 : i == 8;
    if (!zero) shares[i] = c.classes[i];
    sum += shares[i];
  }
  for (double& share : shares) share /= std::max(sum, 1.0);
  return shares;
}

/// Returns the triangular discrimination of two distributions: 0 if they are equal, 2 if nothing is in both.
double distance(const std::array<double, 16>& a, const std::array<double, 16>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i] + b[i] > 0) sum += (a[i] - b[i]) * (a[i] - b[i]) / (a[i] + b[i]);
  }
  return sum;
}

/// Adds up the chunks for which `is_odd` is true.
template <class F>
OddRegion region_of(RegionKind kind, std::span<const Chunk* const> chunks, const F& is_odd) {
  OddRegion region;
  for (const Chunk* c : chunks) {
    if (!is_odd(*c)) continue;
    if (region.kind == RegionKind::kNone) region.first_line = c->first_line;
    region.kind = kind;
    region.lines += c->lines;
  }
  return region;
}

/// Adds the chunks that have windows of noise, if the codes of the middle chunk are far from noise.
OddRegion noise_windows(std::span<const Chunk* const> chunks) {
  constexpr double kNumbers = 2 * Chunk::kWindow, kClear = 120;
  if (std::ranges::none_of(chunks, [](const Chunk* c) { return c->noise_windows > 0; })) return {};
  std::vector<float> usual;
  for (const Chunk* c : chunks)
    usual.push_back(static_cast<float>(unevenness(*c) / static_cast<double>(c->numbers) * kNumbers));
  if (median_of(std::move(usual)) < kClear) return {};
  return region_of(RegionKind::kNoise, chunks, [](const Chunk& c) { return c.noise_windows > 0; });
}

OddRegion odd_signs(std::span<const Chunk* const> chunks) {
  constexpr double kFew = 0.1, kUsual = 0.35;
  std::vector<float> shares;
  for (const Chunk* c : chunks) shares.push_back(static_cast<float>(negative_share(*c)));
  // A part without signs may be as large as half the matrix, so the middle one of the others counts.
  const auto is_odd = [](double share) { return share < kFew || share > 1 - kFew; };
  if (std::ranges::none_of(shares, is_odd)) return {};
  std::vector<float> usual = shares;
  std::erase_if(usual, is_odd);
  if (3 * usual.size() < shares.size()) return {};
  const double middle = median_of(std::move(usual));
  if (std::fabs(middle - kHalf) > kHalf - kUsual) return {};
  // A single row of weights may have one sign.
  constexpr uint64_t kFewLines = 4;
  OddRegion region = region_of(RegionKind::kSigns, chunks, [&](const Chunk& c) {
    return (c.lines >= kFewLines || negative_share(c) == 0 || negative_share(c) == 1) &&
           is_odd(negative_share(c));
  });
  for (const Chunk* c : chunks) {
    if (c->first_line == region.first_line) region.found = negative_share(*c);
  }
  region.usual = middle;
  return region;
}

/// Compares chunks by the shares of codes. The codes of a block or group fill one range, whatever its scale
/// is, so that their shares hardly differ within a matrix.
OddRegion odd_codes_of(NumberKind kind, std::span<const Chunk* const> chunks) {
  constexpr double kFarthest = 0.35, kTimes = 8;
  // The few weights that pruning leaves have shares of their own in each row.
  const auto pruned =
      std::ranges::count_if(chunks, [](const Chunk* c) { return 10 * c->zeros > 7 * c->numbers; });
  if (2 * pruned > std::ssize(chunks)) return {};
  std::vector<std::array<double, 16>> all;
  for (const Chunk* c : chunks) all.push_back(shares_of(kind, *c));
  // If all are near their mean, as nearly always, none is odd.
  constexpr double kNear = 0.05;
  std::array<double, 16> middle{};
  for (const auto& shares : all) {
    for (size_t i = 0; i < middle.size(); ++i) middle[i] += shares[i] / static_cast<double>(all.size());
  }
  if (std::ranges::all_of(all, [&](const auto& shares) { return distance(shares, middle) < kNear; }))
    return {};
  double sum = 0;
  for (size_t i = 0; i < middle.size(); ++i) {
    std::vector<float> values;
    for (const auto& shares : all) values.push_back(static_cast<float>(shares[i]));
    sum += middle[i] = median_of(std::move(values));
  }
  for (double& share : middle) share /= std::max(sum, 1e-9);
  std::vector<float> distances;
  for (const auto& shares : all) distances.push_back(static_cast<float>(distance(shares, middle)));
  const double limit = std::max(kFarthest, kTimes * median_of(distances));
  return region_of(RegionKind::kCodes, chunks,
                   [&](const Chunk& c) { return distance(shares_of(kind, c), middle) > limit; });
}

OddRegion odd_blocks(std::span<const Chunk* const> chunks) {
  constexpr double kAll = 0.985, kFew = 0.93;
  constexpr uint64_t kFewBlocks = 256;
  std::vector<float> shares;
  for (const Chunk* c : chunks) {
    if (c->blocks >= kFewBlocks) shares.push_back(static_cast<float>(full_share(*c)));
  }
  if (std::ranges::none_of(shares, [](double share) { return share < kFew; })) return {};
  const double usual = median_of(std::move(shares));
  if (usual < kAll) return {};
  OddRegion region = region_of(RegionKind::kBlocks, chunks, [&](const Chunk& c) {
    return c.blocks >= kFewBlocks && full_share(c) < kFew;
  });
  for (const Chunk* c : chunks) {
    if (c->first_line == region.first_line && c->blocks > 0) region.found = full_share(*c);
  }
  region.usual = usual;
  return region;
}

/// The low bits of a number that are never set, or always, in a chunk.
unsigned constant_bits(NumberKind kind, const Chunk& c) {
  if (kind == NumberKind::kE4m3) return 7u & ((c.any_bits ^ 0xFFu) | c.all_bits);
  unsigned bits = 0;
  for (unsigned bit = 0; bit < (kind == NumberKind::kInt4 ? 2u : 1u); ++bit) {
    uint64_t set = 0;
    for (unsigned code = 0; code < c.classes.size(); ++code)
      set += (code >> bit & 1) != 0 ? c.classes[code] : 0;
    if (set == 0 || set == c.numbers) bits |= 1u << bit;
  }
  return bits;
}

/// Reports a bit that is the same in all numbers of some chunks, and differs in others.
OddRegion odd_bits(NumberKind kind, std::span<const Chunk* const> chunks) {
  for (int bit = 0; bit < 3; ++bit) {
    const auto is_odd = [&](const Chunk& c) {
      return 2 * c.zeros < c.numbers && (constant_bits(kind, c) >> bit & 1) != 0;
    };
    const auto odd =
        static_cast<size_t>(std::ranges::count_if(chunks, [&](const Chunk* c) { return is_odd(*c); }));
    if (odd == 0 || 4 * odd > 3 * chunks.size()) continue;
    OddRegion region = region_of(RegionKind::kBits, chunks, is_odd);
    region.bit = bit;
    return region;
  }
  return {};
}

}  // namespace

bool is_noise_window(const CodeCounts& window) {
  // Weights have 200 and more; noise has 15, with a standard deviation of 5.5.
  constexpr double kMostOfNoise = 30, kExpected = 2.0 * Chunk::kWindow / 16;
  double sum = 0;
  for (const uint64_t count : window.codes) {
    const double off = static_cast<double>(count) - kExpected;
    sum += off * off / kExpected;
  }
  return sum < kMostOfNoise;
}

OddRegion odd_region(NumberKind kind, std::span<const Chunk> chunks) {
  constexpr size_t kFewChunks = 4;
  std::vector<const Chunk*> some;
  for (const Chunk& c : chunks) {
    if (c.numbers - c.zeros >= kFewNumbers / 4) some.push_back(&c);
  }
  if (some.size() < kFewChunks) return {};
  const bool codes = kind == NumberKind::kE2m1 || kind == NumberKind::kInt4;
  const bool floats = kind == NumberKind::kBf16 || kind == NumberKind::kF16 || kind == NumberKind::kF32;
  const bool bytes = kind == NumberKind::kE4m3 || kind == NumberKind::kE2m3 || kind == NumberKind::kInt8;
  if (!codes && !floats && !bytes) return {};
  if (!floats) {
    const OddRegion noise = region_of(RegionKind::kNoise, some, is_noise);
    if (noise.kind != RegionKind::kNone) return noise;
    const OddRegion windows = noise_windows(some);
    if (windows.kind != RegionKind::kNone) return windows;
  }
  if (codes || kind == NumberKind::kE4m3) {
    const OddRegion bits = odd_bits(kind, some);
    if (bits.kind != RegionKind::kNone) return bits;
  }
  if (kind != NumberKind::kInt4) {
    const OddRegion signs = odd_signs(some);
    if (signs.kind != RegionKind::kNone) return signs;
  }
  if (codes) {
    const OddRegion other = odd_codes_of(kind, some);
    if (other.kind != RegionKind::kNone) return other;
  }
  return kind == NumberKind::kE2m1 ? odd_blocks(some) : OddRegion{};
}

}  // namespace twofour
