#pragma once

namespace twofour::cuda {

/// silu(gate) * up, both clamped where `limit` is positive (product.md, "The MoE layer").
__device__ __forceinline__ float swiglu(float gate, float up, float limit) {
  if (limit > 0) {
    gate = fminf(gate, limit);
    up = fminf(fmaxf(up, -limit), limit);
  }
  return __fdividef(gate, 1.0f + __expf(-gate)) * up;  // right to some 2^-21
}

}  // namespace twofour::cuda
