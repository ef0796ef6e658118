#pragma once
#include <cstdint>

// Files that are compiled for one instruction set include this file. Nothing here may emit a function: the
// linker might keep the copy that only the newest processors can run. So <cstdint> is the only standard
// header.

namespace twofour {

enum class Isa;

/// Counts of four-bit codes, two in a byte.
struct CodeCounts {
  uint64_t codes[16] = {};
  /// Counts of blocks of eight bytes, read as E2M1: blocks of zeros, and blocks with a code of 6 or -6.
  uint64_t zero_blocks = 0, full_blocks = 0;
};

/// Counts and sums of floats.
struct FloatCounts {
  double energy = 0;  ///< sum of the squares, which are computed in float
  float amax = 0;
  uint64_t zeros = 0, negative = 0;  ///< number of zeros of either sign; number of negative numbers but -0
};

/// The sum and the number of the bytes of a line that are not small.
struct ByteSums {
  uint64_t sum = 0, count = 0;
};

/// Counts of E4M3 numbers.
struct Fp8Counts {
  uint64_t upper[16] = {};                 ///< by the upper four bits: sign and three bits of the exponent
  uint64_t zeros = 0, negative_zeros = 0;  ///< 0 and -0; -0 alone
  /// Numbers whose magnitude is the largest one, 448, and the next one, 416.
  uint64_t full = 0, next = 0;
};

/// Counting for one instruction set. All of them give the same numbers, energies to the last bit, too.
struct CountOps {
  /// Adds the codes of `size` bytes.
  void (*codes)(const uint8_t* bytes, uint64_t size, CodeCounts& counts);
  void (*fp8)(const uint8_t* bytes, uint64_t size, Fp8Counts& counts);
  /// Returns the largest of the lower seven bits; 0: there are no bytes.
  uint8_t (*largest)(const uint8_t* bytes, uint64_t size);
  /// Adds `count` numbers, and their squares to `columns` [count].
  void (*bf16)(const uint16_t* numbers, uint64_t count, float* columns, FloatCounts& counts);
  void (*f32)(const float* numbers, uint64_t count, float* columns, FloatCounts& counts);
  /// Adds bytes that are at least `least`, by column, to `sums` and `counts` [count]. At most 256 lines
  /// may be added to them.
  ByteSums (*bytes)(const uint8_t* bytes, uint64_t count, uint8_t least, uint16_t* sums, uint16_t* counts);
};

extern const CountOps kCountPortable, kCountAvx2, kCountAvx512;

const CountOps& count_ops(Isa isa);

}  // namespace twofour
