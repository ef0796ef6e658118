#pragma once
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lib/artifact/recipe.h"
#include "lib/checkpoint/checkpoint.h"
#include "lib/findings/finding.h"
#include "lib/plan/transformation.h"

namespace twofour {

/// What is computed of a source before rules for layouts pack it.
struct ComputedPlan {
  Transformations planned;
  std::map<std::string, std::string> texts;  ///< config files, where formats change
  Findings findings;
  size_t without_statistics = 0;  ///< modules in NVFP4 that would be pruned by magnitude
  bool quantizes = false;         ///< formats change
};

/// Nothing where the rules take none. `source` outlives what is planned. Throws Error where a linear cannot
/// be computed.
std::optional<ComputedPlan> plan_computed(const Checkpoint& source, const Recipe& recipe,
                                          const MemoryLimits& limits = {});

}  // namespace twofour
