#pragma once
#include <array>
#include <cstdint>
#include <optional>

#include "kernels/solve/solve.h"
#include "kernels/solve/solve_ops.h"

namespace twofour {

/// The value of code 1.0 under each block scale, and the reciprocal of this value.
struct ScaleSteps {
  std::array<float, kScaleCodes> step{}, inverse{};
  ScaleSteps(const SolveRule& rule, float stored);
};

/// The number of columns of a group, which share a mask: 4 or 8.
inline int group_of(std::optional<PrunePattern> pattern) {
  return pattern == PrunePattern::k4of8Paired ? 8 : 4;
}

/// The number of the mask that keeps the given columns of a group. `kept` has 1 for a kept column and 0 for
/// others. Masks are numbered in the order of their kept columns.
int32_t mask_of(const uint8_t* kept, int group);

/// The part of the plan that all rows of k columns share, without the Hessian. `steps` must outlive the plan.
SolvePlan plan_of(const SolveRule& rule, const ScaleSteps& steps, int64_t k, float stored);

/// Checks the input of a caller against the requirements of solve_rows.
void check_input(const SolveRule& rule, int64_t k, const SolveInput& in);

}  // namespace twofour
