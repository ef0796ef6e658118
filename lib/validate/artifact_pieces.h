#pragma once
#include <vector>

#include "formats/atom.h"
#include "kernels/moe/moe.h"
#include "lib/artifact/modules.h"
#include "lib/checkpoint/checkpoint.h"

namespace twofour {

/// Experts larger than this are not unpacked at once: their atoms alone would pass the promised memory.
inline constexpr int64_t kMaxUnpackedWeights = 192 << 20;

/// A matrix of an artifact as numbers, one expert at a time, by the slow path of lib/rederive.h.
class ArtifactRows {
 public:
  /// `matrix` is one of read_artifact_modules(artifact).
  ArtifactRows(const Checkpoint& artifact, const ArtifactMatrix& matrix);
  /// Refers to this object. Rows gate then up.
  WeightRows rows();

 private:
  void load(int64_t e);

  const Checkpoint& artifact_;
  const ArtifactMatrix& matrix_;
  std::vector<float> global_scales_;
  double global_scale_ = 0;  ///< of the expert
  std::vector<DenseGroup> groups_;
};

}  // namespace twofour
