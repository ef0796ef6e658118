#pragma once
#include <cstdint>

/// Decodes weights to BF16. E2M1 times E4M3 is exact in BF16: it has six significant bits, and BF16 has
/// eight.

namespace twofour::cuda {

/// Decodes the codes in the low nibbles of bytes 0 and 2 to BF16 times 2^-126. One product moves the sign of
/// a nibble to its place and the rest to its place.
__device__ __forceinline__ uint32_t low_codes(uint32_t w) {
  return (w & 0x000F000Fu) * 0x1040u & 0x81C081C0u;
}
/// Decodes the codes in the high nibbles in the same way.
__device__ __forceinline__ uint32_t high_codes(uint32_t w) {
  return (w & 0x00F000F0u) * 0x0104u & 0x81C081C0u;
}

/// Multiplies two pairs of BF16. Products are rounded to nearest even. Subnormal numbers, below 2^-126, are
/// not flushed.
__device__ __forceinline__ uint32_t multiply_bf16(uint32_t a, uint32_t b) {
  uint32_t r;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}

}  // namespace twofour::cuda
