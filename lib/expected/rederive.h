#pragma once
#include <cstdint>
#include <vector>

#include "formats/atom.h"
#include "lib/checkpoint/checkpoint.h"
#include "lib/checkpoint/linears.h"
#include "lib/methods/layout_matrix.h"

namespace twofour {

/// The slow path from a source to what an artifact must hold: no code in common with the packers, only the
/// formats.

/// A piece of one expert of a target as atoms [rows, k/16], gate then up, block scales as the source has them
/// or, with `fold`, brought to the folded global scale.
std::vector<DenseGroup> read_dense_groups(const Checkpoint& source, const OutputMatrix& target,
                                          const OutputScales& scales, int64_t e, const Piece& piece,
                                          bool fold);

/// A byte of an artifact that is not what the source derives to.
struct Mismatch {
  uint64_t count = 0;
  // The first one, in the order of parts:
  int part = -1;
  int64_t row = 0, col = 0;  ///< of the part
  int64_t n = 0, k = 0;      ///< first weight that the byte belongs to
  uint8_t expected = 0, found = 0;
};

/// Compares bytes of an artifact with what `groups` ([N, K/16] of one piece) derive to. `parts[p]` holds part
/// p of the piece.
Mismatch compare_piece(const std::string& layout, Shape shape, std::span<const DenseGroup> groups,
                       std::span<const std::span<const uint8_t>> parts);

/// The dense weights that parts of an artifact hold.
std::vector<DenseGroup> unpack_piece(const std::string& layout, Shape shape,
                                     std::span<const std::span<const uint8_t>> parts);

/// `groups` as the layout's pattern leaves them: dropped codes 0x0.
void apply_pattern(const std::string& layout, std::span<DenseGroup> groups);

/// One row of weights, 16 a group.
void dequantize_groups(std::span<const DenseGroup> groups, double global_scale, std::span<double> out);

/// Rows [n0, n1) of an expert in float32, [n1 - n0, K], from the bytes that a checkpoint stores, whatever
/// their format. Throws Error on scales that are negative, but of INT4, or no finite numbers, on FP8 weights
/// that are NaN, and on groups that do not exist.
std::vector<float> derive_weights(const Checkpoint& source, WeightReader& reader, const Linear& module,
                                  int64_t e, int64_t n0, int64_t n1);

}  // namespace twofour
