#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "formats/module_kinds.h"
#include "formats/module_names.h"
#include "formats/module_roles.h"

namespace twofour {

/// The kind of a feed-forward block in a layer.
enum class BlockKind { kRoutedExperts, kSharedExpert, kDenseMlp };

/// A matrix of a feed-forward block. Gate and up multiply the block's input. Down multiplies the product of
/// the activated gate and up.
enum class Projection { kGate, kUp, kDown, kGateUp };

/// The order of rows in a stored matrix of gate and up.
enum class GateUpRows { kHalves, kInterleaved };

/// The paths of a checkpoint's experts and the names of their matrices. The table has one row for each family
/// of models.
struct NamingRule {
  const char* models;            ///< models that use these names
  const char* routed;            ///< path of the routed experts below the layer; nullptr if there are none
  const char* shared;            ///< path of the shared expert
  const char* dense;             ///< path of a dense MLP
  const char *gate, *up, *down;  ///< matrices of one expert, or of the MLP
  /// The names of stacked experts: one tensor [E, ...] for gate and up, and one for down. nullptr if each
  /// expert has its own tensors.
  const char *stacked_gate_up, *stacked_down;
  const char* stacks = nullptr;   ///< path of the stacks, a prefix of `routed`; nullptr: same as `routed`
  const char* stack_suffix = "";  ///< suffix of a stack's name if the stack holds floats
};

/// All naming rules of twofour. Sources: Hugging Face transformers, conversion_mapping.py; vLLM,
/// model_executor/models.
std::span<const NamingRule> naming_rules();

/// A module's name, taken apart.
struct ModuleName {
  BlockKind kind;
  Projection projection;
  int64_t expert = -1;  ///< number of the expert; -1 for a stack of experts, a shared expert or a dense MLP
  /// The prefix P of the module's artifact, such as "model.layers.0.mlp.experts" or "model.layers.0.mlp". A
  /// stack has the prefix that its experts have after splitting. The stack's own name need not begin with
  /// this prefix.
  std::string block;
  const NamingRule* naming;  ///< the rule that knows the name
};

/// Parses the name of a module, which is a tensor's name without the dialect's suffix. Returns an empty value
/// if no rule knows the name; the module then passes through unchanged.
std::optional<ModuleName> parse_module_name(std::string_view module);

/// The name of the float tensor that holds a projection of all experts of block P. Gate and up share a
/// tensor. Examples: "model.layers.0.mlp.experts.gate_up_proj",
/// "model.layers.0.block_sparse_moe.input_linear.weight". Empty if P is known only with separate experts.
std::string stack_tensor(std::string_view block, Projection projection);

/// The name of a module in transformers if it differs from the name in the files. The lists of modules in
/// transformers accept both names. Empty if the names are equal.
std::string name_in_transformers(std::string_view model_type, std::string_view module);

/// The name that vLLM matches with its expressions for a module, if it differs from the name in the files.
/// Empty if the names are equal.
std::string name_in_vllm(std::string_view model_type, std::string_view module);

/// The group of linears that engines fuse, such as gate and up, or q, k and v. The linears of a group need
/// one global scale. Returns the module's name up to its last dot, and the number of the group. Empty for a
/// module of no group.
std::optional<std::pair<std::string, size_t>> fused_group(const std::string& module);

}  // namespace twofour
