#pragma once
#include <memory>
#include <string>
#include <vector>

#include "formats/json.h"
#include "lib/dialects/output_dialect.h"

namespace twofour {

/// What a loader finds in a configuration for the weights of a module, by the rules of vLLM's classes.
/// Sources: vLLM, model_executor/layers/quantization/{modelopt,fp8}.py and compressed_tensors/.
class LoaderLookup {
 public:
  virtual ~LoaderLookup() = default;
  /// The entry of a linear, as WrittenModel::entries has it; null: it is not quantized.
  virtual Json find(const std::string& module) const = 0;
  /// The entry of linears that the loader puts into one. Throws Error where it refuses them.
  virtual Json find_fused(const std::vector<std::string>& shards) const = 0;
  /// The entry of a block of routed experts: "model.layers.0.mlp.experts".
  virtual Json find_experts(const std::string& block) const = 0;
};

/// nullptr where the configuration is in none of the dialects that several formats can have.
std::unique_ptr<LoaderLookup> make_lookup(const ConfigEntries& config);

/// Where a loader would not find the entry that a module has: as "MODULE: expected X, found Y".
std::vector<std::string> find_lookup_conflicts(const WrittenModel& model, const ConfigEntries& config);

/// Formats that no configuration can tell a loader apart: within what engines fuse, and within the experts of
/// a layer. As "MODULE: expected X, found Y", naming the rule.
std::vector<std::string> find_split_layers(const WrittenModel& model);

}  // namespace twofour
