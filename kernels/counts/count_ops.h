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

/// The range of the magnitudes of 16-bit numbers, their lower fifteen bits, and all bits set in any of them.
struct HalfRange {
  uint16_t least = 0xFFFF, most = 0, bits = 0;
};

/// Counts and sums of floats.
struct FloatCounts {
  double energy = 0;  ///< sum of the squares, which are computed in float
  float amax = 0;
  uint64_t zeros = 0, negative = 0;  ///< number of zeros of either sign; number of negative numbers but -0
  HalfRange range{};  ///< range for BF16; among `bits` are those of the largest one and the sign
};

/// The sum and the number of the bytes of a line that are not small.
struct ByteSums {
  uint64_t sum = 0, count = 0;
};

/// The sum of the bytes of a line, and of their squares.
struct SquareSums {
  uint64_t sum = 0, squares = 0;
};

/// Counts of E4M3 numbers.
struct Fp8Counts {
  uint64_t upper[16] = {};                 ///< by the upper four bits: sign and three bits of the exponent
  uint64_t zeros = 0, negative_zeros = 0;  ///< 0 and -0; -0 alone
  /// Numbers whose magnitude is the largest one, 448, and the next one, 416.
  uint64_t full = 0, next = 0;
};

/// The magnitudes of the floats of a row, without zeros, subnormal numbers, NaN and infinity.
struct LevelSums {
  int64_t eighths = 0;  ///< sum of the logarithms, rounded down to eighths between powers of two
  uint64_t count = 0;
};

/// The sum of the logarithms of such floats: of their powers of two and, as products by lanes, of what
/// remains.
struct LogSums {
  static constexpr int kLanes = 16, kMostFactors = 1000;  ///< so many factors below two fit into a product
  int64_t exponents = 0;
  double products[kLanes] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
};

/// Counting for one instruction set. All of them give the same numbers, energies to the last bit, too.
struct CountOps {
  /// Adds the codes of `size` bytes.
  void (*codes)(const uint8_t* bytes, uint64_t size, CodeCounts& counts);
  void (*fp8)(const uint8_t* bytes, uint64_t size, Fp8Counts& counts);
  /// Returns the largest of the lower seven bits; 0: there are no bytes.
  uint8_t (*largest)(const uint8_t* bytes, uint64_t size);
  /// True if all bytes are `least` to `most`.
  bool (*are_within)(const uint8_t* bytes, uint64_t size, uint8_t least, uint8_t most);
  /// Adds the bytes of a line by column to `sums` [count]. At most 256 lines may be added to these.
  SquareSums (*squares)(const uint8_t* bytes, uint64_t count, uint16_t* sums);
  HalfRange (*halves)(const uint16_t* numbers, uint64_t count);
  /// Adds the bytes to `counts` [256], by value.
  void (*histogram)(const uint8_t* bytes, uint64_t size, uint64_t* counts);
  /// Adds numbers [lines, count] to `counts` [lines], and their squares to `columns` [count], line by line,
  /// unless it is nullptr.
  void (*bf16)(const uint16_t* numbers, uint64_t count, uint64_t lines, float* columns, FloatCounts* counts);
  /// Adds `count` numbers, and their squares to `columns` [count].
  void (*f32)(const float* numbers, uint64_t count, float* columns, FloatCounts& counts);
  /// Adds those of bytes [lines, count] that are at least `least`, by column, to `sums` and `counts` [count],
  /// and by line to `of_lines` [lines]. At most 256 lines may be added to the columns.
  void (*bytes)(const uint8_t* bytes, uint64_t count, uint64_t lines, uint8_t least, uint16_t* sums,
                uint16_t* counts, ByteSums* of_lines);
  /// Adds `count` numbers to `line` and `logs`, to which they are ceil(count / 16) factors a lane, and, by
  /// column, to `sums`, in octaves, and `counts` [count], unless these are nullptr.
  void (*bf16_levels)(const uint16_t* numbers, uint64_t count, float* sums, uint32_t* counts, LevelSums& line,
                      LogSums& logs);
  void (*f32_levels)(const float* numbers, uint64_t count, float* sums, uint32_t* counts, LevelSums& line,
                     LogSums& logs);
};

extern const CountOps kCountPortable, kCountAvx2, kCountAvx512;

const CountOps& count_ops(Isa isa);

}  // namespace twofour
