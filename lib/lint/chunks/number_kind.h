#pragma once
#include <cstdint>
#include <cstring>

namespace twofour {

/// The kinds of numbers in a matrix.
enum class NumberKind {
  kUnknown,  ///< bytes of unknown meaning; only their hashes are compared
  kE2m1,     ///< E2M1, two codes in a byte: NVFP4, MXFP4
  kE2m3,     ///< E2M3, four codes in three bytes: MXFP6
  kE4m3,
  kBf16,
  kF16,
  kF32,
  kE8m0,  ///< E8M0 exponents, the scales of blocks
  kInt8,  ///< -128 to 127
  kInt4,  ///< two codes of 0 to 15 in a byte; the zero point is about 8
};

/// Masks for a word of sixteen E2M1 codes: the magnitude of each code, and its lowest bit.
constexpr uint64_t kCodeBits = 0x7777777777777777u, kCodeUnits = 0x1111111111111111u;

/// Loads a word of sixteen codes from eight bytes.
inline uint64_t word_of(const uint8_t* bytes) {
  uint64_t word = 0;
  std::memcpy(&word, bytes, sizeof(word));
  return word;
}

/// Bytes of one number; 1 for four-bit codes.
inline int width_of(NumberKind kind) {
  return kind == NumberKind::kF32 ? 4 : kind == NumberKind::kBf16 || kind == NumberKind::kF16 ? 2 : 1;
}

/// The bits of the byte at position `i` in a line that belong to magnitudes, not signs.
inline uint8_t magnitude_bits(NumberKind kind, uint64_t i) {
  if (kind == NumberKind::kE2m1) return 0x77;
  const auto width = static_cast<uint64_t>(width_of(kind));
  return kind != NumberKind::kUnknown && i % width == width - 1 ? 0x7F : 0xFF;
}

}  // namespace twofour
