#pragma once
#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include "lib/lint/family/family_tensors.h"

namespace twofour {

struct CodedModule;

/// What is known of a model once its config was held against its tensors, so that other checks say nothing
/// twice.
struct ModelFacts {
  const FamilyShapes* family = nullptr;             ///< nullptr: of no known family
  std::optional<int64_t> experts;                   ///< of a layer, by the tensors where the config is wrong
  const std::vector<CodedModule>* coded = nullptr;  ///< all linears with codes; outlives this
  bool is_held = false;             ///< every tensor was held against a row that has all names
  bool embedding_reported = false;  ///< as missing
  std::optional<bool> tied;         ///< the head to the embedding, where config.json does not say it
  std::set<size_t> reported;        ///< tensors of a shape that was reported
};

/// Holds every tensor against its family's row and config.json.
ModelFacts lint_family(const LintInput& input, LintReporter& reporter);

}  // namespace twofour
