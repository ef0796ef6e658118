#include "lib/metrics/value_error.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace twofour {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr size_t kLanes = 8;  // sums side by side, so that additions need not wait for each other

double difference(float a, float b) {
  const bool same = a == b || (a != a && b != b);
  return same ? 0 : static_cast<double>(a) - static_cast<double>(b);
}

bool is_beyond(float a, double difference, double tolerance) {
  const double size = std::max(std::abs(static_cast<double>(a)), 0x1p-126);
  // Equal ones may be NaN or infinite; a difference that is NaN is beyond, too.
  return difference != 0 && !(std::abs(difference) <= tolerance * size);
}

/// The larger one; NaN, once there, stays.
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

}  // namespace twofour
