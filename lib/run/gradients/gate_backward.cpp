#include <algorithm>
#include <cmath>

#include "lib/run/gradients/blocks.h"

namespace twofour {
namespace {

/// A number's function and the function's derivative.
struct Curve {
  float value, slope;
};

Curve gelu(float x) {
  constexpr float kRoot = 0.7978845608f, kCube = 0.044715f;  // the root of 2 / pi
  const float t = std::tanh(kRoot * (x + kCube * x * x * x)), half = 0.5f * (1.0f + t);
  return {x * half, half + 0.5f * x * (1.0f - t * t) * kRoot * (1.0f + 3.0f * kCube * x * x)};
}

Curve swish(float x, float slope) {
  const float s = 1.0f / (1.0f + std::exp(-slope * x));
  return {x * s, s + slope * x * s * (1.0f - s)};
}

}  // namespace

void gate_gradient(const GateShape& shape, const float* gate, const float* up, int64_t count, float* d,
                   float* dup) {
  const float limit = shape.limit;
  for (int64_t i = 0; i < count; ++i) {
    const float g = limit > 0 ? std::min(gate[i], limit) : gate[i];
    const float u = limit > 0 ? std::clamp(up[i], -limit, limit) : up[i];
    const Curve c = shape.is_gelu ? gelu(g) : swish(g, shape.slope);
    const float own = d[i];
    const bool is_clamped = limit > 0 && gate[i] > limit, is_up_clamped = limit > 0 && u != up[i];
    d[i] = is_clamped ? 0.0f : own * c.slope * (u + (shape.is_gelu ? 0.0f : shape.offset));
    dup[i] = is_up_clamped ? 0.0f : own * c.value;
  }
}

}  // namespace twofour
