#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace twofour {

/// What a feed-forward block is in its layer.
enum class BlockKind { kRoutedExperts, kSharedExpert, kDenseMlp };

/// Which matrix of the block: gate and up are applied to the input, down to their product.
enum class Projection { kGate, kUp, kDown, kGateUp };

/// How a stored matrix that holds gate and up orders their rows.
enum class GateUpRows { kHalves, kInterleaved };

/// Where the experts of a checkpoint sit and what their matrices are called. One row a family of models.
struct NamingRule {
  const char* models;            ///< who uses it
  const char* routed;            ///< path of the routed experts below the layer; nullptr: none
  const char* shared;            ///< path of the shared expert
  const char* dense;             ///< path of a dense MLP
  const char *gate, *up, *down;  ///< the matrices of one expert, or of the MLP
  /// Stacked experts: one tensor [E, ...] for gate and up, one for down; nullptr: each expert has its own.
  const char *stacked_gate_up, *stacked_down;
  GateUpRows stacked_rows;
  /// Applies only where the stack has this sibling: the sole mark that tells interleaved stacks from halves.
  const char* stacked_sibling;
};

/// Every naming twofour knows. Source: Hugging Face transformers, conversion_mapping.py; vLLM,
/// model_executor/models.
std::span<const NamingRule> naming_rules();

/// A module's name, taken apart.
struct ModuleName {
  BlockKind kind;
  Projection projection;
  GateUpRows rows = GateUpRows::kHalves;
  int64_t expert = -1;  ///< -1: a stack of experts, a shared expert or a dense MLP
  std::string_view
      block;  ///< the prefix P of its artifact: "model.layers.0.mlp.experts", "model.layers.0.mlp"
};

/// Takes apart the name of a module (a tensor's name without the dialect's suffix). `exists` says whether the
/// checkpoint has a tensor of a given name. Empty where no rule knows the name; such modules pass through.
std::optional<ModuleName> parse_module_name(std::string_view module,
                                            const std::function<bool(const std::string&)>& exists);

}  // namespace twofour
