#pragma once
#include <optional>
#include <string>

#include "lib/source/checkpoint/checkpoint.h"

namespace twofour {

/// The reason why kernels and reference would not compute what the model computes in the block with prefix
/// `block`. They support only weights, with silu(gate) * up or relu(up)^2. The reason is a bias or another
/// term beside one of the block's linears, a transform, or another activation in config.json. The text is
/// "where: expected X, found Y"; nullopt if there is no such reason.
std::optional<std::string> why_not_run(const Checkpoint& checkpoint, const std::string& block, bool gated);

}  // namespace twofour
