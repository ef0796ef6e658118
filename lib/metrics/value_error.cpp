#include "lib/element_error.h"

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstring>
#include <limits>

namespace twofour {
namespace {

/// The distance of two integers is taken before they are rounded, so that neighbours are never 0 apart.
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
  // Of a difference that is NaN no comparison holds.
  return distance != 0 && !(distance <= tolerance * std::max(std::abs(a), 0x1p-126));
}

template <class T>
T load(const uint8_t* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(value));
  return value;
}

/// Values stored as T.
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

/// Elements of which nothing but their bytes is known.
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
