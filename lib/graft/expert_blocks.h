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
    kExpert,  ///< of one expert: P.7.up_proj.weight
    kStack,   ///< a slice for each expert, along the outermost dimension
    kRouter,  ///< likewise: the router's rows, bias and correction bias
    kWhole,   ///< of all experts together
  };
  size_t tensor;  ///< in Checkpoint::tensors()
  Kind kind;
  int64_t expert = -1;   ///< kExpert
  size_t number_at = 0;  ///< kExpert: position of the number in the name
};

/// The routed experts of a layer, with their router.
struct ExpertBlock {
  std::string name;  ///< "model.layers.3.mlp.experts"
  int64_t experts = 0;
  std::vector<ExpertTensor> tensors;
};

/// All blocks of a checkpoint, by name. Throws Error if experts are missing, if tensors of a block disagree
/// on their number, if the division of a router's tensor is unknown, and on hash layers.
std::vector<ExpertBlock> find_expert_blocks(const Checkpoint& checkpoint);

}  // namespace twofour
