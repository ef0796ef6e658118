#pragma once

namespace twofour::cuda {

/// The smaller of two numbers. Returns NaN if one of them is NaN, which fminf would ignore.
__device__ __forceinline__ float least(float a, float b) {
  float r;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}
/// Returns 2^x. Results below 2^-126 become zero.
__device__ __forceinline__ float power_of_two(float x) {
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}

/// silu(gate) * up. A positive `limit` clamps gate from above, and up from both sides. NaN stays NaN. It
/// has no branches.
__device__ __forceinline__ float swiglu(float gate, float up, float limit) {
  const float most = limit > 0 ? limit : __int_as_float(0x7F800000);
  gate = least(gate, most), up = -least(-least(up, most), most);
  return __fdividef(gate, 1.0f + power_of_two(-1.44269504f * gate)) * up;  // the error is about 2^-21
}

/// Returns relu(x)^2.
__device__ __forceinline__ float square_of_positive(float x) {
  const float relu = x < 0 ? 0.0f : x;  // NaN stays NaN
  return relu * relu;
}

}  // namespace twofour::cuda
