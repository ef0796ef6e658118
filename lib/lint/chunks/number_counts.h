#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/counts/count_ops.h"
#include "lib/lint/chunks/chunk.h"

namespace twofour {

/// Counts bytes. Four tables are filled in turn, since a processor waits if it counts the same byte twice in
/// a row.
class ByteCounts {
 public:
  void add(std::span<const uint8_t> bytes);
  /// Adds the counts to a chunk of numbers of this kind, and to `all`, by byte. Forgets them.
  void move_to(NumberKind kind, Chunk& chunk, std::array<uint64_t, 256>& all);

 private:
  std::array<std::array<uint32_t, 256>, 4> tables_{};
};

/// The counting operations of this processor.
const CountOps& best_count_ops();

/// Combines `to` with as many bytes by a bitwise or.
void or_into(std::vector<uint8_t>& to, const uint8_t* from);

/// Adds counts of E2M1 or INT4 codes to a chunk.
void add_codes(NumberKind kind, const CodeCounts& codes, Chunk& chunk);

/// Adds E2M3 codes, four in three bytes, to a chunk, by their upper four bits, and to `all`, by code.
void add_sixes(std::span<const uint8_t> bytes, Chunk& chunk, std::array<uint64_t, 256>& all);

/// Adds counts of E4M3 numbers to a chunk.
void add_fp8(const Fp8Counts& counts, Chunk& chunk);

/// Returns the sum of squares and the largest magnitude of the finite numbers.
FloatCounts sum_finite(std::span<const float> numbers);
/// True if each number is 0, 0.5, 1, 1.5 or a whole number of at most 15, or such a number's negative.
bool are_on_grid(std::span<const float> numbers);

}  // namespace twofour
