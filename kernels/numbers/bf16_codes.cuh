#pragma once
#include <cstdint>

/// Weights in BF16, in which E2M1 times E4M3 is exact: six significant bits of eight.

namespace twofour::cuda {

/// Codes in the low nibbles of bytes 0 and 2, as BF16 times 2^-126: one product moves a nibble both to the
/// place of its sign and to the place of the rest.
__device__ __forceinline__ uint32_t low_codes(uint32_t w) {
  return (w & 0x000F000Fu) * 0x1040u & 0x81C081C0u;
}
/// The same for the high nibbles.
__device__ __forceinline__ uint32_t high_codes(uint32_t w) {
  return (w & 0x00F000F0u) * 0x0104u & 0x81C081C0u;
}

/// Products of two pairs of BF16, rounded to nearest even; subnormal numbers, below 2^-126, are not flushed.
__device__ __forceinline__ uint32_t multiply_bf16(uint32_t a, uint32_t b) {
  uint32_t r;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}

}  // namespace twofour::cuda
