#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "formats/module_names.h"
#include "formats/module_roles.h"

namespace twofour {

/// The kind of a feed-forward block in its layer.
enum class BlockKind { kRoutedExperts, kSharedExpert, kDenseMlp };

/// A matrix of the block: gate and up are applied to the input, down to their product.
enum class Projection { kGate, kUp, kDown, kGateUp };

/// The order of rows in a stored matrix of gate and up.
enum class GateUpRows { kHalves, kInterleaved };

/// The paths of a checkpoint's experts and the names of their matrices. One row for each family of models.
struct NamingRule {
  const char* models;            ///< that use it
  const char* routed;            ///< path of the routed experts below the layer; nullptr: none
  const char* shared;            ///< path of the shared expert
  const char* dense;             ///< path of a dense MLP
  const char *gate, *up, *down;  ///< the matrices of one expert, or of the MLP
  /// Stacked experts: one tensor [E, ...] for gate and up, one for down; nullptr: each expert has its own.
  const char *stacked_gate_up, *stacked_down;
  const char* stacks = nullptr;   ///< path of the stacks, the beginning of `routed`; nullptr: `routed`
  const char* stack_suffix = "";  ///< of a stack of floats behind its name
};

/// Every naming twofour knows. Source: Hugging Face transformers, conversion_mapping.py; vLLM,
/// model_executor/models.
std::span<const NamingRule> naming_rules();

/// A module's name, taken apart.
struct ModuleName {
  BlockKind kind;
  Projection projection;
  int64_t expert = -1;  ///< -1: a stack of experts, a shared expert or a dense MLP
  /// The prefix P of its artifact: "model.layers.0.mlp.experts", "model.layers.0.mlp". A stack has the prefix
  /// of its experts after splitting, which need not begin the stack's name.
  std::string block;
  const NamingRule* naming;  ///< that knows the name
};

/// Takes apart the name of a module (a tensor's name without the dialect's suffix). Empty if no rule knows
/// the name; such modules pass through.
std::optional<ModuleName> parse_module_name(std::string_view module);

/// The tensor of floats that holds a projection of all experts of block P, gate with up:
/// "model.layers.0.mlp.experts.gate_up_proj", "model.layers.0.block_sparse_moe.input_linear.weight". Empty if
/// P is known only with separate experts.
std::string stack_tensor(std::string_view block, Projection projection);

/// The name of a module in transformers, if files use another: its lists of modules know both. Empty: the
/// same name.
std::string name_in_transformers(std::string_view model_type, std::string_view module);

/// The name of a module that vLLM matches its expressions against, if files use another. Empty: the same
/// name.
std::string name_in_vllm(std::string_view model_type, std::string_view module);

/// The group of linears that engines fuse (gate and up; q, k and v), so that they need one global scale: the
/// name before the module's last dot, and the group's number. Empty for a module of no group.
std::optional<std::pair<std::string, size_t>> fused_group(const std::string& module);

}  // namespace twofour
