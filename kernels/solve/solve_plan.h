#pragma once
#include <array>
#include <cstdint>
#include <optional>

#include "kernels/solve/solve.h"
#include "kernels/solve/solve_ops.h"

namespace twofour {

/// The value of code 1.0 under each block scale, and its reciprocal.
struct ScaleSteps {
  std::array<float, kScaleCodes> step{}, inverse{};
  ScaleSteps(Arithmetic arithmetic, float stored);
};

/// Columns of a mask: 4 or 8.
inline int group_of(std::optional<PrunePattern> pattern) {
  return pattern == PrunePattern::k4of8Paired ? 8 : 4;
}

/// The number of the mask that keeps these columns of a group (1: stays); masks are in the order of their
/// kept columns.
int32_t mask_of(const uint8_t* kept, int group);

/// The plan that rows of k columns share, without the Hessian. `steps` must outlive it.
SolvePlan plan_of(const SolveRule& rule, const ScaleSteps& steps, int64_t k, float stored);

/// Checks a caller's input against the requirements of solve_rows.
void check_input(const SolveRule& rule, int64_t k, const SolveInput& in);

}  // namespace twofour
