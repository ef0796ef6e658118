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

/// What a feed-forward block is in its layer.
enum class BlockKind { kRoutedExperts, kSharedExpert, kDenseMlp };

/// Which matrix of the block: gate and up are applied to the input, down to their product.
enum class Projection { kGate, kUp, kDown, kGateUp };

/// How a stored matrix that holds gate and up orders their rows.
enum class GateUpRows { kHalves, kInterleaved };

/// Where the experts of a checkpoint sit and what their matrices are called. One row a family of models.
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
  /// The prefix P of its artifact: "model.layers.0.mlp.experts", "model.layers.0.mlp". A stack has that of
  /// its experts taken apart, which need not begin its own name.
  std::string block;
  const NamingRule* naming;  ///< that knows the name
};

/// Takes apart the name of a module (a tensor's name without the dialect's suffix). Empty where no rule knows
/// the name; such modules pass through.
std::optional<ModuleName> parse_module_name(std::string_view module);

/// The tensor in which files of floats hold a projection of all experts of block P, gate with up:
/// "model.layers.0.mlp.experts.gate_up_proj", "model.layers.0.block_sparse_moe.input_linear.weight". Empty
/// where P is known with experts of their own only.
std::string stack_tensor(std::string_view block, Projection projection);

/// What transformers calls a module that files name otherwise: its lists of modules know both names. Empty:
/// as the files do.
std::string name_in_transformers(std::string_view model_type, std::string_view module);

/// What vLLM calls a module where its expressions for modules are asked by another name than the files'.
/// Empty: as the files do.
std::string name_in_vllm(std::string_view model_type, std::string_view module);

/// The group of linears that engines put into one (gate and up; q, k and v), so that they need one global
/// scale: the name before the module's last dot, and which group. Nothing for a module of no group.
std::optional<std::pair<std::string, size_t>> fused_group(const std::string& module);

}  // namespace twofour
