#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "formats/atom.h"
#include "kernels/moe/moe.h"
#include "lib/prove/validate/proof.h"
#include "lib/recipe/artifact/artifact_modules.h"
#include "lib/source/checkpoint/checkpoint.h"
#include "lib/write/methods/layout_matrix.h"

namespace twofour {

/// Reads the parts of one piece of an expert from an artifact.
class PieceReader {
 public:
  /// The artifact must have all parts of the matrix.
  PieceReader(const Checkpoint& artifact, const LayoutMatrix& matrix);
  PieceReader(const Proof& proof, const LayoutMatrix& matrix) : PieceReader(proof.artifact, matrix) {}
  /// Reads a piece of expert `e`. The result is valid until the next call.
  std::span<const std::span<const uint8_t>> read(int64_t e, const Piece& piece);

 private:
  const Checkpoint& artifact_;
  const LayoutMatrix& matrix_;
  std::vector<size_t> tensors_;  ///< indices of the artifact's tensors, one for each part
  std::vector<std::vector<uint8_t>> storage_;
  std::vector<std::span<const uint8_t>> parts_;
};

/// The largest number of weights of an expert that is unpacked in one go. The groups of one larger expert
/// would exceed the promised memory.
inline constexpr int64_t kMaxUnpackedWeights = 192 << 20;

/// A matrix of an artifact as numbers, one expert at a time. It is read by the slow path of rederive.h.
class ArtifactRows {
 public:
  /// `matrix` must be an element of read_artifact_modules(artifact).
  ArtifactRows(const Checkpoint& artifact, const ArtifactMatrix& matrix);
  /// The rows, with gate before up. They refer to this object.
  WeightRows rows();

 private:
  void load(int64_t e);

  const Checkpoint& artifact_;
  const ArtifactMatrix& matrix_;
  std::vector<float> global_scales_;
  double global_scale_ = 0;  ///< global scale of the loaded expert
  std::vector<DenseGroup> groups_;
};

}  // namespace twofour
