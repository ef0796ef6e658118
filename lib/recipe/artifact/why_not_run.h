#pragma once
#include <optional>
#include <string>

#include "lib/source/checkpoint/checkpoint.h"

namespace twofour {

/// The reason why kernels and reference would compute something else than the model in the block of prefix
/// `block`: they support only weights and silu(gate) * up or relu(up)^2, but the block has a bias or another
/// term beside one of its linears, transforms, or another activation in config.json. As "where: expected X,
/// found Y"; empty if there is none.
std::optional<std::string> why_not_run(const Checkpoint& checkpoint, const std::string& block, bool gated);

}  // namespace twofour
