#pragma once
#include "lib/plan/plan.h"

namespace twofour {

/// Cuts a target's experts into pieces. `k_outer`: its modules are stacks with K along the dimension before
/// the last.
Tiling make_tiling(const Target& target, const std::string& layout, bool k_outer, const MemoryLimits& limits);

}  // namespace twofour
