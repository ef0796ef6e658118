#pragma once
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "lib/lint/family/family_tensors.h"

namespace twofour {

struct CodedModule;

/// Facts about a model that the comparison of config and tensors found. Other checks use them to report
/// nothing twice.
struct ModelFacts {
  const FamilyShapes* family = nullptr;  ///< nullptr: the family is unknown
  /// Number of experts in a layer. If the config is wrong, it is the number that the tensors show.
  std::optional<int64_t> experts;
  /// All linears with codes. They outlive this object.
  const std::vector<CodedModule>* coded = nullptr;
  bool is_held = false;             ///< every tensor was compared with a row of the family that has all names
  bool embedding_reported = false;  ///< the embedding was reported as missing
  std::optional<bool> tied;   ///< the head is tied to the embedding; set if config.json does not state it
  std::set<size_t> reported;  ///< tensors whose shape was reported
};

/// Reports names of all tensors that have a part which loaders do not expect, such as that of a wrapper.
void lint_name_prefix(const LintInput& input, LintReporter& reporter);

/// Compares every tensor with the row of its family and with config.json.
ModelFacts lint_family(const LintInput& input, LintReporter& reporter);

/// Returns a tensor's name without the parts that wrappers put there, as torch.compile and FSDP do.
std::string unwrapped(std::string_view name);

}  // namespace twofour
