#include "lib/look/metrics/value_error.h"

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstring>
#include <limits>

namespace twofour {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr size_t kLanes = 8;  // parallel sums, so that additions need not wait for each other

double difference(float a, float b) {
  const bool same = a == b || (a != a && b != b);
  return same ? 0 : static_cast<double>(a) - static_cast<double>(b);
}

bool is_beyond(float a, double difference, double tolerance) {
  const double size = std::max(std::abs(static_cast<double>(a)), 0x1p-126);
  // Equal values may be NaN or infinite. A NaN difference counts as beyond the tolerance.
  return difference != 0 && !(std::abs(difference) <= tolerance * size);
}

/// The larger of two values. NaN if one of them is NaN.
double larger(double a, double b) { return ((a >= b) | (a != a)) ? a : b; }

double sum(const double (&lanes)[kLanes]) {
  double total = 0;
  for (const double lane : lanes) total += lane;
  return total;
}

}  // namespace

void ValueError::add_row(std::span<const float> source, std::span<const float> other, int64_t e, int64_t n,
                         double tolerance) {
  double aa[kLanes] = {}, bb[kLanes] = {}, ab[kLanes] = {}, dd[kLanes] = {}, largest[kLanes] = {};
  uint64_t unequal[kLanes] = {}, far[kLanes] = {};
  const auto add = [&](size_t i, size_t lane) {
    const double a = source[i], b = other[i], d = difference(source[i], other[i]);
    aa[lane] += a * a;
    bb[lane] += b * b;
    ab[lane] += a * b;
    dd[lane] += d * d;
    largest[lane] = larger(largest[lane], std::abs(d));
    unequal[lane] += d != 0;
    far[lane] += is_beyond(source[i], d, tolerance);
  };
  size_t i = 0;
  for (; i + kLanes <= source.size(); i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) add(i + lane, lane);
  }
  for (; i < source.size(); ++i) add(i, i % kLanes);

  ValueError row;
  row.energy = sum(aa);
  row.other_energy = sum(bb);
  row.product = sum(ab);
  row.error = sum(dd);
  row.weights = source.size();
  for (size_t lane = 0; lane < kLanes; ++lane) {
    row.max_abs = larger(row.max_abs, largest[lane]);
    row.different += unequal[lane];
    row.beyond += far[lane];
  }
  for (size_t k = 0; row.beyond > 0 && row.first.e < 0 && k < source.size(); ++k) {
    if (!is_beyond(source[k], difference(source[k], other[k]), tolerance)) continue;
    row.first = {e, n, static_cast<int64_t>(k), source[k], other[k]};
  }
  *this += row;
}

ValueError& ValueError::operator+=(const ValueError& next) {
  energy += next.energy;
  other_energy += next.other_energy;
  product += next.product;
  error += next.error;
  max_abs = larger(max_abs, next.max_abs);
  weights += next.weights;
  different += next.different;
  beyond += next.beyond;
  if (first.e < 0) first = next.first;
  return *this;
}

bool ValueError::has_ratios() const { return std::isfinite(energy) && error > 0; }

double ValueError::relative_error() const {
  if (different == 0) return 0;
  if (!has_ratios()) return kNan;
  return energy > 0 ? std::sqrt(error / energy) : std::numeric_limits<double>::infinity();
}

double ValueError::snr_db() const {
  if (different == 0) return std::numeric_limits<double>::infinity();
  return has_ratios() ? 10 * std::log10(energy / error) : kNan;
}

double ValueError::cosine() const {
  if (different == 0) return 1;
  if (!has_ratios() || !std::isfinite(other_energy) || !std::isfinite(product)) return kNan;
  return energy > 0 && other_energy > 0 ? product / std::sqrt(energy * other_energy) : 0;
}

namespace {

/// The distance of two integers. It is computed before rounding, so that the distance of different integers
/// is never 0.
template <std::integral T>
double distance(T a, T b) {
  const auto x = static_cast<uint64_t>(std::max(a, b)), y = static_cast<uint64_t>(std::min(a, b));
  return static_cast<double>(x - y);
}

double distance(double a, double b) {
  const bool same = a == b || (std::isnan(a) && std::isnan(b));
  return same ? 0 : std::abs(a - b);
}

template <std::integral T>
bool is_beyond(T, double distance, double) {
  return distance != 0;
}

bool is_beyond(double a, double distance, double tolerance) {
  // No comparison holds for a NaN difference.
  return distance != 0 && !(distance <= tolerance * std::max(std::abs(a), 0x1p-126));
}

template <class T>
T load(const uint8_t* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(value));
  return value;
}

/// Compares values stored as T.
template <class T>
ValueError compare_values(std::span<const uint8_t> source, std::span<const uint8_t> other, double tolerance) {
  ValueError sum;
  sum.weights = source.size() / sizeof(T);
  for (size_t i = 0; i < sum.weights; ++i) {
    const T a = load<T>(source.data() + i * sizeof(T)), b = load<T>(other.data() + i * sizeof(T));
    const auto x = static_cast<double>(a), y = static_cast<double>(b);
    const double d = distance(a, b);
    sum.energy += x * x;
    sum.other_energy += y * y;
    sum.product += x * y;
    sum.error += d * d;
    if (!(d <= sum.max_abs) && !std::isnan(sum.max_abs)) sum.max_abs = d;
    sum.different += d != 0;
    if (!is_beyond(a, d, tolerance)) continue;
    if (sum.beyond++ == 0) {
      sum.first = {0, 0, static_cast<int64_t>(i), static_cast<float>(x), static_cast<float>(y)};
    }
  }
  return sum;
}

/// Compares elements as bytes only.
ValueError compare_bytes(size_t width, std::span<const uint8_t> source, std::span<const uint8_t> other) {
  ValueError sum;
  sum.weights = source.size() / width;
  for (size_t i = 0; i < sum.weights; ++i) {
    if (std::memcmp(source.data() + i * width, other.data() + i * width, width) == 0) continue;
    if (sum.beyond++ == 0) sum.first = {0, 0, static_cast<int64_t>(i), 0, 0};
  }
  sum.different = sum.beyond;
  if (sum.beyond > 0) {
    sum.energy = sum.other_energy = sum.product = sum.error = sum.max_abs =
        std::numeric_limits<double>::quiet_NaN();
  }
  return sum;
}

ValueError compare(DType dtype, std::span<const uint8_t> source, std::span<const uint8_t> other,
                   double tolerance) {
  ValueError sum;
  const bool are_numbers =
      with_number_type(dtype, [&]<class T>() { sum = compare_values<T>(source, other, tolerance); });
  return are_numbers ? sum : compare_bytes(static_cast<size_t>(element_bytes(dtype)), source, other);
}

}  // namespace

ElementError compare_elements(DType dtype, std::span<const uint8_t> source, std::span<const uint8_t> other,
                              double tolerance) {
  ElementError result{compare(dtype, source, other, tolerance)};
  WeightDifference& first = result.error.first;
  if (first.e < 0) return result;
  const auto at = static_cast<size_t>(first.k * element_bytes(dtype));
  result.first = {element_value(dtype, &source[at]), element_value(dtype, &other[at])};
  first.expected = static_cast<float>(element_number(dtype, &source[at]));
  first.found = static_cast<float>(element_number(dtype, &other[at]));
  return result;
}

}  // namespace twofour
