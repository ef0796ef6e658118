#pragma once

namespace twofour::cuda {

/// silu(gate) * up, both clamped where `limit` is positive (product.md, "The MoE layer"). NaN stays NaN,
/// which fminf and fmaxf would make a limit.
__device__ __forceinline__ float swiglu(float gate, float up, float limit) {
  if (limit > 0) {
    gate = gate > limit ? limit : gate;
    up = up > limit ? limit : up < -limit ? -limit : up;
  }
  return __fdividef(gate, 1.0f + __expf(-gate)) * up;  // right to some 2^-21
}

/// relu(x)^2.
__device__ __forceinline__ float square_of_positive(float x) {
  const float relu = x < 0 ? 0.0f : x;  // NaN stays NaN
  return relu * relu;
}

}  // namespace twofour::cuda
