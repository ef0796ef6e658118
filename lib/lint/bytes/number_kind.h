#pragma once
#include <cstdint>
#include <cstring>

namespace twofour {

/// What the numbers of a matrix are.
enum class NumberKind {
  kUnknown,  ///< bytes; only hashes are kept
  kE2m1,     ///< two codes a byte: NVFP4, MXFP4
  kE4m3,
  kBf16,
  kF16,
  kF32,
  kE8m0,  ///< exponents that scale blocks
  kInt8,  ///< -128 to 127
  kInt4,  ///< two codes of 0 to 15 a byte, 8 the zero point or near it
};

/// Of sixteen codes of E2M1: their magnitudes, the lowest bits of each.
constexpr uint64_t kCodeBits = 0x7777777777777777u, kCodeUnits = 0x1111111111111111u;

/// Sixteen codes.
inline uint64_t word_of(const uint8_t* bytes) {
  uint64_t word = 0;
  std::memcpy(&word, bytes, sizeof(word));
  return word;
}

/// Bytes of a number; of codes of four bits 1.
inline int width_of(NumberKind kind) {
  return kind == NumberKind::kF32 ? 4 : kind == NumberKind::kBf16 || kind == NumberKind::kF16 ? 2 : 1;
}

/// Bits of a byte at `i` of a line that are magnitudes.
inline uint8_t magnitude_bits(NumberKind kind, uint64_t i) {
  if (kind == NumberKind::kE2m1) return 0x77;
  const auto width = static_cast<uint64_t>(width_of(kind));
  return kind != NumberKind::kUnknown && i % width == width - 1 ? 0x7F : 0xFF;
}

}  // namespace twofour
