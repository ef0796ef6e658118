#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "lib/source/checkpoint/checkpoint.h"

namespace twofour {

/// A tensor that belongs to a block of experts.
struct ExpertTensor {
  enum class Kind {
    kExpert,  ///< a tensor of one expert: P.7.up_proj.weight
    kStack,   ///< a tensor with a slice per expert along the outermost dimension
    kRouter,  ///< a tensor of the router with a slice per expert: its rows, bias or correction bias
    kWhole,   ///< a tensor that all experts share
  };
  size_t tensor;  ///< position in Checkpoint::tensors()
  Kind kind;
  int64_t expert = -1;   ///< number of the expert; only for kExpert
  size_t number_at = 0;  ///< position of that number in the tensor's name; only for kExpert
};

/// The routed experts of a layer, with their router.
struct ExpertBlock {
  std::string name;  ///< "model.layers.3.mlp.experts"
  int64_t experts = 0;
  std::vector<ExpertTensor> tensors;
};

/// Returns all blocks of experts in a checkpoint, sorted by name. Throws Error if experts are missing, if
/// tensors of a block disagree on the number of experts, if it is unknown how a router's tensor is divided,
/// and on layers with hash routing.
std::vector<ExpertBlock> find_expert_blocks(const Checkpoint& checkpoint);

}  // namespace twofour
