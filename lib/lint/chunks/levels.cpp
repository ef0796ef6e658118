#include "lib/lint/chunks/levels.h"

#include <algorithm>
#include <cmath>
#include <tuple>

namespace twofour {
namespace {

std::vector<double> finite(std::span<const float> octaves) {
  std::vector<double> values;
  values.reserve(octaves.size());
  for (const float x : octaves) {
    if (std::isfinite(x)) values.push_back(double{x});
  }
  return values;
}

double finite_median(std::span<const float> octaves) {
  const std::vector<double> values = finite(octaves);
  return median_of(std::vector<float>(values.begin(), values.end()));
}

/// Looks for a step between equal parts, as where ranks have scales of their own. The step must be at the
/// border, and be larger than what varies within the parts.
void find_step(std::span<const float> octaves, size_t parts, Levels& levels) {
  constexpr double kLeast = 1.5, kAtBorder = 0.75;
  constexpr size_t kFew = 64, kBeside = 32;
  const size_t size = octaves.size() / parts;
  if (octaves.size() % parts != 0 || size < kFew) return;
  std::vector<RobustSpread> spreads;
  for (size_t i = 0; i < parts; ++i) {
    std::vector<double> values = finite(octaves.subspan(i * size, size));
    if (2 * values.size() < size) return;
    spreads.push_back(robust_spread(std::move(values)));
  }
  const size_t beside = std::min(size, kBeside);
  for (size_t i = 1; i < parts; ++i) {
    const double step = spreads[i].median - spreads[i - 1].median, height = std::fabs(step);
    if (height < std::max(kLeast, std::fabs(double{levels.step}) + 0.1)) continue;
    if (3 * std::max(spreads[i].deviation, spreads[i - 1].deviation) > height) continue;
    const double local = finite_median(octaves.subspan(i * size, beside)) -
                         finite_median(octaves.subspan(i * size - beside, beside));
    if (local * step < 0 || std::fabs(local) < kAtBorder * height) continue;
    levels.parts = static_cast<int>(parts);
    levels.part = static_cast<int>(i);
    levels.step = static_cast<float>(step);
  }
}

/// True if eighths differ so little, on average, that there is no step. It is quick, and enough for most
/// matrices.
bool are_even(std::span<const float> octaves) {
  constexpr size_t kParts = 8;
  constexpr float kLeast = 0.75f;
  const size_t size = octaves.size() / kParts;
  float least = INFINITY, most = -INFINITY;
  for (size_t part = 0; part < kParts; ++part) {
    float sum = 0, count = 0;
    for (const float x : octaves.subspan(part * size, size)) {
      const bool is_number = std::isfinite(x);
      sum += is_number ? x : 0;
      count += is_number ? 1 : 0;
    }
    if (count == 0) continue;
    least = std::min(least, sum / count);
    most = std::max(most, sum / count);
  }
  return most - least < kLeast;
}

}  // namespace

RobustSpread robust_spread(std::vector<double> values) {
  if (values.empty()) return {};
  const auto median = [](std::vector<double>& v) {
    const auto middle = v.begin() + static_cast<std::ptrdiff_t>(v.size() / 2);
    std::nth_element(v.begin(), middle, v.end());
    return v.size() % 2 == 1 ? *middle : (*middle + *std::max_element(v.begin(), middle)) / 2;
  };
  RobustSpread spread;
  spread.median = median(values);
  for (double& v : values) v = std::fabs(v - spread.median);
  spread.deviation = 1.4826 * median(values);
  return spread;
}

double median_of(std::vector<float> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return double{*middle};
  return (double{*middle} + double{*std::max_element(values.begin(), middle)}) / 2;
}

Sketch sketch_of(std::span<const float> octaves, size_t group) {
  constexpr double kFarthest = 3;
  std::vector<double> bins;
  for (size_t at = 0; at + group <= octaves.size(); at += group) {
    double sum = 0;
    for (const float x : octaves.subspan(at, group)) sum += double{x};
    if (!std::isfinite(sum)) return {};
    bins.push_back(sum / static_cast<double>(group));
  }
  double mean = 0, squares = 0;
  for (const double x : bins) mean += x / static_cast<double>(bins.size());
  for (const double x : bins) squares += (x - mean) * (x - mean);
  const double deviation = std::sqrt(squares / static_cast<double>(std::max<size_t>(1, bins.size())));
  Sketch sketch{};
  if (!(deviation > 0)) return sketch;
  std::array<double, std::tuple_size_v<Sketch>> sums{};
  for (size_t i = 0; i < bins.size(); ++i) {
    uint64_t hash = (i + 1) * 0x9E3779B97F4A7C15u;
    hash = (hash ^ hash >> 32) * 0xBF58476D1CE4E5B9u;
    const double x = std::clamp((bins[i] - mean) / deviation, -kFarthest, kFarthest);
    sums[(hash >> 33) % sums.size()] += (hash >> 32 & 1) != 0 ? x : -x;
  }
  double largest = 0;
  for (const double x : sums) largest = std::max(largest, std::fabs(x));
  for (size_t i = 0; i < sums.size(); ++i)
    sketch[i] = static_cast<int8_t>(std::lround(sums[i] / std::max(largest, 1e-9) * 127));
  return sketch;
}

double cosine_of(const Sketch& a, std::span<const double> sum) {
  double ab = 0, aa = 0, bb = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    ab += a[i] * sum[i];
    aa += double{static_cast<double>(a[i])} * a[i];
    bb += sum[i] * sum[i];
  }
  return aa > 0 && bb > 0 ? ab / std::sqrt(aa * bb) : 0;
}

Levels compare_levels(std::span<const float> octaves) {
  Levels levels;
  std::vector<float> values(octaves.begin(), octaves.end());
  std::erase_if(values, [](float x) { return !std::isfinite(x); });
  constexpr size_t kFew = 4;
  if (values.size() < kFew) return levels;
  double sum = 0, squares = 0;
  for (const float x : values) sum += double{x}, squares += double{x} * double{x};
  const auto count = static_cast<double>(values.size());
  const double spread = std::sqrt(std::max(0.0, squares / count - sum / count * (sum / count)));
  levels.spread = static_cast<float>(spread);
  // A small spread shows that the mean, which is faster, is near the median.
  constexpr double kSmallSpread = 0.5;
  const double median = spread < kSmallSpread ? sum / count : median_of(std::move(values));
  levels.median = static_cast<float>(median);
  double most = 0;
  for (size_t i = 0; i < octaves.size(); ++i) {
    const double above = double{octaves[i]} - median;
    if (!std::isfinite(octaves[i]) || above <= most) continue;
    most = above;
    levels.largest = static_cast<uint32_t>(i);
  }
  levels.above = static_cast<float>(most);
  if (are_even(octaves)) return levels;
  for (const size_t parts : {2, 4, 8}) find_step(octaves, parts, levels);
  return levels;
}

}  // namespace twofour
