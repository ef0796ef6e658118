#pragma once
#include <cstdint>
#include <vector>

#include "formats/atom.h"
#include "lib/source/checkpoint/checkpoint.h"
#include "lib/source/checkpoint/linears.h"
#include "lib/write/methods/layout_matrix.h"

namespace twofour {

/// The slow path from a source to the correct artifact: it shares the formats with the packers, but no code.

/// A piece of one expert of a target as atoms [rows, k/16], gate then up. Block scales are the source's or,
/// with `fold`, converted to the folded global scale.
std::vector<DenseGroup> read_dense_groups(const Checkpoint& source, const OutputMatrix& target,
                                          const OutputScales& scales, int64_t e, const Piece& piece,
                                          bool fold);

/// Bytes of an artifact that differ from those derived from the source.
struct Mismatch {
  uint64_t count = 0;
  // The first one, in the order of parts:
  int part = -1;
  int64_t row = 0, col = 0;  ///< of the part
  int64_t n = 0, k = 0;      ///< first weight that the byte belongs to
  uint8_t expected = 0, found = 0;
};

/// Compares bytes of an artifact with those derived from `groups` ([N, K/16] of one piece). `parts[p]` holds
/// part p of the piece.
Mismatch compare_piece(const std::string& layout, Shape shape, std::span<const DenseGroup> groups,
                       std::span<const std::span<const uint8_t>> parts);

/// The dense weights that parts of an artifact hold.
std::vector<DenseGroup> unpack_piece(const std::string& layout, Shape shape,
                                     std::span<const std::span<const uint8_t>> parts);

/// Prunes `groups` to the layout's pattern: dropped codes become 0x0.
void apply_pattern(const std::string& layout, std::span<DenseGroup> groups);

/// Dequantizes one row of weights, 16 per group.
void dequantize_groups(std::span<const DenseGroup> groups, double global_scale, std::span<double> out);

/// Rows [n0, n1) of an expert in float32, [n1 - n0, K], from the bytes that a checkpoint stores, in any
/// format. Throws Error on scales that are negative (except for INT4) or not finite, on FP8 weights that are
/// NaN, and on groups that do not exist.
std::vector<float> derive_weights(const Checkpoint& source, WeightReader& reader, const Linear& module,
                                  int64_t e, int64_t n0, int64_t n1);

}  // namespace twofour
