#pragma once
#include <cstdint>
#include <vector>

#include "formats/atom.h"
#include "lib/source/checkpoint/checkpoint.h"
#include "lib/source/linears/linears.h"
#include "lib/write/methods/layout_matrix.h"

namespace twofour {

/// The slow path from a source to the correct artifact. It shares the formats with the packers, but no code.

/// Reads a piece of one expert of a target as groups [rows, k/16], with rows of gate before rows of up. Block
/// scales are the source's. With `fold`, they are converted to the folded global scale.
std::vector<DenseGroup> read_dense_groups(const Checkpoint& source, const OutputMatrix& target,
                                          const OutputScales& scales, int64_t e, const Piece& piece,
                                          bool fold);

/// Bytes of an artifact that differ from the bytes derived from the source.
struct Mismatch {
  uint64_t count = 0;
  // The first of these bytes, in the order of parts:
  int part = -1;
  int64_t row = 0, col = 0;  ///< place in the part
  int64_t n = 0, k = 0;      ///< the first weight that the byte belongs to
  uint8_t expected = 0, found = 0;
};

/// Compares bytes of an artifact with bytes derived from `groups`, which are [N, K/16] of one piece.
/// `parts[p]` holds part p of the piece.
Mismatch compare_piece(const std::string& layout, Shape shape, std::span<const DenseGroup> groups,
                       std::span<const std::span<const uint8_t>> parts);

/// The dense weights that parts of an artifact hold.
std::vector<DenseGroup> unpack_piece(const std::string& layout, Shape shape,
                                     std::span<const std::span<const uint8_t>> parts);

/// Prunes `groups` to the layout's sparsity pattern. Dropped codes become 0x0.
void apply_pattern(const std::string& layout, std::span<DenseGroup> groups);

/// Dequantizes one row of weights; each group has 16.
void dequantize_groups(std::span<const DenseGroup> groups, double global_scale, std::span<double> out);

/// Rows [n0, n1) of an expert in float32, [n1 - n0, K], derived from the stored bytes of a checkpoint in any
/// format. Throws Error on scales that are negative (except for INT4) or not finite, on FP8 weights that are
/// NaN, and on groups that do not exist.
std::vector<float> derive_weights(const Checkpoint& source, WeightReader& reader, const Linear& module,
                                  int64_t e, int64_t n0, int64_t n1);

}  // namespace twofour
