#pragma once
#include <optional>
#include <string>

#include "lib/source/checkpoint/checkpoint.h"

namespace twofour {

/// Returns why the kernels and the reference cannot run the block with prefix `block`, or nullopt. They
/// support linears without bias and the activations silu(gate) * up and relu(up)^2. The reason is a bias or
/// another term beside one of the block's linears, a transform, or a different activation in config.json. The
/// text is "where: expected X, found Y".
std::optional<std::string> why_not_run(const Checkpoint& checkpoint, const std::string& block, bool gated);

}  // namespace twofour
