#include <algorithm>
#include <array>
#include <cmath>

#include "formats/atom.h"
#include "formats/e2m1.h"
#include "kernels/device/check.h"
#include "kernels/numbers/quantize.h"
#include "kernels/numbers/quantize_ops.h"

namespace twofour {
namespace {

constexpr size_t kErrorLanes = 16;

double sum_of(double (&lanes)[kErrorLanes]) {
  for (size_t width = kErrorLanes / 2; width > 0; width /= 2) {
    for (size_t j = 0; j < width; ++j) lanes[j] += lanes[j + width];
  }
  return lanes[0];
}

}  // namespace

void dequantize_nvfp4(Arithmetic arithmetic, float stored_global_scale, const uint8_t* codes,
                      const uint8_t* scales, std::span<float> weights, Isa isa) {
  check(weights.size() % kGroup == 0, "K a multiple of 16");
  const auto blocks = static_cast<int64_t>(weights.size()) / kGroup;
  std::array<float, 256> steps;
  for (size_t byte = 0; byte < steps.size(); ++byte) {
    steps[byte] = step_of(arithmetic, static_cast<uint8_t>(byte), stored_global_scale);
  }
  if (const QuantizeOps* ops = quantize_ops(isa)) {
    ops->dequantize(steps.data(), codes, scales, blocks, weights.data());
    return;
  }
  for (int64_t block = 0; block < blocks; ++block) {
    const float step = steps[scales[block]];
    float* x = weights.data() + block * kGroup;
    float value[16];
#pragma omp simd
    for (unsigned code = 0; code < 16; ++code) value[code] = e2m1_to_float(code) * step;
    for (int j = 0; j < kGroup / 2; ++j) {
      const unsigned pair = codes[block * (kGroup / 2) + j];
      x[2 * j] = value[pair & 15u];
      x[2 * j + 1] = value[pair >> 4];
    }
  }
}

QuantizeError& QuantizeError::operator+=(const QuantizeError& other) {
  weights_squared += other.weights_squared;
  errors_squared += other.errors_squared;
  products += other.products;
  largest = std::max(largest, other.largest);
  return *this;
}

QuantizeError quantize_error_of(std::span<const float> weights, std::span<const float> values, Isa isa) {
  check(weights.size() == values.size(), "a value for each weight");
  ErrorLanes lanes{};
  const QuantizeOps* ops = quantize_ops(isa);
  const auto count = static_cast<int64_t>(weights.size());
  const auto done =
      static_cast<size_t>(ops == nullptr ? 0 : ops->add_errors(weights.data(), values.data(), count, lanes));
  for (size_t i = done; i < weights.size(); ++i) {
    const size_t lane = i % kErrorLanes;
    const double w = weights[i], q = values[i], error = w - q;
    lanes.weights[lane] += w * w;
    lanes.errors[lane] += error * error;
    lanes.products[lane] += w * q;
    lanes.largest[lane] = std::max(lanes.largest[lane], std::abs(error));
  }
  return {sum_of(lanes.weights), sum_of(lanes.errors), sum_of(lanes.products),
          *std::max_element(lanes.largest, lanes.largest + kErrorLanes)};
}

double sum_of_squares(std::span<const float> weights, Isa isa) {
  double lanes[kErrorLanes] = {};
  const QuantizeOps* ops = quantize_ops(isa);
  const auto count = static_cast<int64_t>(weights.size());
  const auto done = static_cast<size_t>(ops == nullptr ? 0 : ops->add_squares(weights.data(), count, lanes));
  for (size_t i = done; i < weights.size(); ++i) {
    const double w = weights[i];
    lanes[i % kErrorLanes] += w * w;
  }
  return sum_of(lanes);
}

}  // namespace twofour
