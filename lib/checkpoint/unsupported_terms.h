#pragma once
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/checkpoint/checkpoint.h"
#include "lib/findings/problems.h"

namespace twofour {

/// The tensors of a checkpoint, sound or not, and how to read them.
struct TensorAccess {
  std::span<const TensorInfo> tensors;  ///< sorted by name
  /// As Checkpoint::read; empty: nothing is read, and terms that depend on values are not found.
  std::function<void(size_t, uint64_t, std::span<uint8_t>)> read{};
  const std::vector<bool>* whole = nullptr;  ///< which tensors can be read; nullptr: all
};
TensorAccess access_to(const Checkpoint& checkpoint);

/// A tensor beside a linear that changes what its weights mean: "X.pre_quant_scale", "X.lora_A.weight".
struct WeightTerm {
  size_t tensor;
  size_t weight;        ///< the linear's weights
  std::string linear;   ///< X
  std::string problem;  ///< "expected X, found Y", without where
};

/// All terms beside linears in a format that twofour reads, found by their names. Zero points and orders of
/// groups count by their values: zeros, and groups in order, change nothing. Beside INT4, whose decoders
/// account for them, they are no such terms. The only place that knows them.
std::vector<WeightTerm> find_weight_terms(const TensorAccess& access);

/// What a quantization entry of config.json says that changes what all weights mean: transforms (Hadamard
/// matrices) that are to be undone. As "KEY: expected X, found Y"; empty where it says nothing of the kind.
std::optional<std::string> find_config_term(const Json& quantization);

/// Adds to `problems` what changes the meaning of the weights that are read: terms beside those whose tensor
/// `is_read`, transforms, and settings in config.json that are not what they must be. For every command that
/// reads codes as weights.
void refuse_changed_weights(const Checkpoint& checkpoint, const std::function<bool(size_t)>& is_read,
                            Problems& problems);

/// Why kernels and reference, which know weights and silu(gate) * up or relu(up)^2 alone, would compute
/// something else than the model does in the block of prefix `block`: a bias or another term beside one of
/// its linears, transforms, another activation in config.json. As "where: expected X, found Y"; empty where
/// nothing shows it.
std::optional<std::string> why_not_run(const Checkpoint& checkpoint, const std::string& block, bool gated);

}  // namespace twofour
