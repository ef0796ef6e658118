#pragma once
#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include "lib/lint/family/family_tensors.h"

namespace twofour {

struct CodedModule;

/// Facts about a model from the comparison of config and tensors, so that other checks report nothing twice.
struct ModelFacts {
  const FamilyShapes* family = nullptr;             ///< nullptr: unknown family
  std::optional<int64_t> experts;                   ///< number in a layer, by the tensors if the config is
                                                    ///< wrong
  const std::vector<CodedModule>* coded = nullptr;  ///< all linears with codes; outlives this
  bool is_held = false;             ///< every tensor was compared with a row that has all names
  bool embedding_reported = false;  ///< reported as missing
  std::optional<bool> tied;         ///< the head is tied to the embedding, if config.json does not state it
  std::set<size_t> reported;        ///< tensors whose shape was reported
};

/// Compares every tensor with its family's row and config.json.
ModelFacts lint_family(const LintInput& input, LintReporter& reporter);

}  // namespace twofour
