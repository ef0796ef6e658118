#include "lib/metrics/quality.h"

#include <cmath>
#include <limits>

#include "kernels/numbers/quantize.h"

namespace twofour {

void EncodeError::add(std::span<const float> weights, std::span<const float> back, int64_t k, Isa isa) {
  const auto row = static_cast<size_t>(k);
  for (size_t at = 0; at < weights.size(); at += row) {
    const QuantizeError sums = quantize_error_of(weights.subspan(at, row), back.subspan(at, row), isa);
    energy += sums.weights_squared;
    error += sums.errors_squared;
  }
}

EncodeError& EncodeError::operator+=(const EncodeError& other) {
  energy += other.energy;
  error += other.error;
  return *this;
}

double EncodeError::relative_error() const { return energy > 0 ? std::sqrt(error / energy) : 0; }

double EncodeError::snr_db() const {
  if (error <= 0) return std::numeric_limits<double>::infinity();
  return 10 * std::log10(energy / error);
}

}  // namespace twofour
