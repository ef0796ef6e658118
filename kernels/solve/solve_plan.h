#pragma once
#include <array>
#include <cstdint>
#include <optional>

#include "kernels/solve/solve.h"
#include "kernels/solve/solve_ops.h"

namespace twofour {

/// What code 1.0 is worth under each block scale, and the reciprocals.
struct ScaleSteps {
  std::array<float, kScaleCodes> step{}, inverse{};
  ScaleSteps(Arithmetic arithmetic, float stored);
};

/// Columns of a mask: 4 or 8.
inline int group_of(std::optional<PrunePattern> pattern) {
  return pattern == PrunePattern::k4of8Paired ? 8 : 4;
}

/// The mask that keeps these columns of a group, 1 of those that stay; masks in the order of their kept
/// columns.
int32_t mask_of(const uint8_t* kept, int group);

/// What rows of k columns have in common, but for the Hessian. `steps` must outlive it.
SolvePlan plan_of(const SolveRule& rule, const ScaleSteps& steps, int64_t k, float stored);

/// Holds what a caller passes against what solve_rows asks for.
void check_input(const SolveRule& rule, int64_t k, const SolveInput& in);

}  // namespace twofour
