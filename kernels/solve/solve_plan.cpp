#include "kernels/solve/solve_plan.h"

#include <algorithm>
#include <cmath>

#include "formats/e4m3.h"
#include "kernels/device/check.h"

namespace twofour {
namespace {

int nearest_scale(float want) {
  const float bounded = want > 0x1p-9f ? want : 0x1p-9f;
  return std::clamp<int>(e4m3_from_float(bounded), 1, 126);
}

}  // namespace

ScaleSteps::ScaleSteps(Arithmetic arithmetic, float stored) {
  for (int code = 1; code < kScaleCodes; ++code) {
    const auto at = static_cast<size_t>(code);
    step[at] = step_of(arithmetic, static_cast<uint8_t>(code), stored);
    inverse[at] = 1.0f / step[at];
  }
}

int32_t mask_of(const uint8_t* kept, int group) {
  const int each = group / 4;  // columns that stay or are pruned together
  int32_t mask = 0;
  for (int a = 0; a < 4; ++a) {
    for (int b = a + 1; b < 4; ++b, ++mask) {
      bool same = true;
      for (int i = 0; i < group; ++i) same = same && (kept[i] != 0) == (i / each == a || i / each == b);
      if (same) return mask;
    }
  }
  twofour::check(false, "a mask of the pattern");
  return 0;
}

SolvePlan plan_of(const SolveRule& rule, const ScaleSteps& steps, int64_t k, float stored) {
  twofour::check(is_solvable(rule.arithmetic, stored), "a normal global scale");
  SolvePlan plan{};
  plan.k = k;
  plan.group = group_of(rule.pattern);
  plan.is_dense = !rule.pattern;
  plan.step = steps.step.data();
  plan.inverse = steps.inverse.data();
  plan.to_code = rule.arithmetic == Arithmetic::modelopt ? 1.0f / stored : stored;
  plan.nearest = nearest_scale;
  plan.min_gain = rule.min_gain;
  plan.scale_search = rule.scale_search;
  return plan;
}

void check_input(const SolveRule& rule, int64_t k, const SolveInput& in) {
  twofour::check(k > 0 && k % kSolveBlock == 0, "k a multiple of 16");
  twofour::check(in.weights.size() % static_cast<size_t>(k) == 0, "whole rows");
  twofour::check(in.mask.empty() || (rule.pattern && in.mask.size() == in.weights.size()),
                 "a mask of the weights");
}

}  // namespace twofour
