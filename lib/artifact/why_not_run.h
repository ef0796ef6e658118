#pragma once
#include <optional>
#include <string>

#include "lib/checkpoint/checkpoint.h"

namespace twofour {

/// Why kernels and reference, which know weights and silu(gate) * up or relu(up)^2 alone, would compute
/// something else than the model does in the block of prefix `block`: a bias or another term beside one of
/// its linears, transforms, another activation in config.json. As "where: expected X, found Y"; empty where
/// nothing shows it.
std::optional<std::string> why_not_run(const Checkpoint& checkpoint, const std::string& block, bool gated);

}  // namespace twofour
