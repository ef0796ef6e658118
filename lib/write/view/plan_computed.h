#pragma once
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lib/base/findings/finding.h"
#include "lib/recipe/artifact/recipe.h"
#include "lib/source/checkpoint/checkpoint.h"
#include "lib/write/plan/transformation.h"

namespace twofour {

/// The linears of a source that are computed before rules for layouts pack them.
struct ComputedPlan {
  Transformations planned;
  std::map<std::string, std::string> texts;  ///< the config files, if number formats change
  Findings findings;
  size_t without_statistics = 0;  ///< number of NVFP4 modules that would be pruned by magnitude
  bool quantizes = false;         ///< number formats change
};

/// Plans the computed linears. Empty if the rules need none. `source` must outlive the plan. Throws Error if
/// a linear cannot be computed.
std::optional<ComputedPlan> plan_computed(const Checkpoint& source, const Recipe& recipe,
                                          const MemoryLimits& limits = {});

}  // namespace twofour
