#pragma once
#include <filesystem>
#include <span>
#include <vector>

#include "lib/checkpoint/checkpoint.h"
#include "lib/transform/expert_packer.h"
#include "lib/plan/plan.h"
#include "lib/validate/validate.h"

namespace twofour {

/// Packs pieces on the CUDA device as `convert` does there, to be held against an artifact that was proven by
/// the slow path.
class DeviceDerivation {
 public:
  DeviceDerivation(const Checkpoint& source, const Plan& plan);

  /// `parts` are the artifact's of a piece of expert `e`. Pieces of a target one after the other.
  void compare(size_t target, int64_t e, const Piece& piece, std::span<const std::span<const uint8_t>> parts);
  /// Adds what differed in a target's pieces; `stats` is what pruning did by the slow path, one a source.
  void finish(size_t target, std::span<const PruneStats> stats, ValidateReport& report);

 private:
  const Plan& plan_;
  ExpertPacker packer_;
  std::vector<PruneStats> stats_;
  uint64_t wrong_ = 0;
  int64_t first_expert_ = 0;
};

/// Dequantizes modules of the source on the CUDA device and holds the bytes against an artifact in BF16.
/// Stacks with K outer, which no kernel reads, become a note.
void check_dequantized_on_cuda(const Checkpoint& artifact, const Checkpoint& source, const Plan& plan,
                               ValidateReport& report);

/// Runs every layer that an artifact holds in a layout on the CUDA device, on seeded activations, and holds
/// its output against the reference in double over the weights as they are stored. Adds to `report`.
void check_layers_on_cuda(const Checkpoint& artifact, const ValidateOptions& options, ValidateReport& report);

}  // namespace twofour
