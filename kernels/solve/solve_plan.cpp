#include "kernels/solve/solve_plan.h"

#include <algorithm>
#include <cmath>

#include "formats/e4m3.h"
#include "formats/e8m0.h"
#include "kernels/device/check.h"

namespace twofour {
namespace {

int nearest_scale(float want) {
  const float bounded = want > 0x1p-9f ? want : 0x1p-9f;
  return std::clamp<int>(e4m3_from_float(bounded), 1, 126);
}

/// The largest block scale that the solver writes. Reciprocals of powers of two are normal numbers, too.
int last_scale_of(WeightFormat format) { return format->global_scale ? 126 : 253; }

}  // namespace

ScaleSteps::ScaleSteps(const SolveRule& rule, float stored) {
  for (int code = 1; code <= last_scale_of(rule.format); ++code) {
    const auto at = static_cast<size_t>(code), byte = at;
    step[at] = rule.format->global_scale ? step_of(rule.arithmetic, static_cast<uint8_t>(byte), stored)
                                         : e8m0_to_float(static_cast<unsigned>(byte));
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
  const WeightFormat format = rule.format;
  twofour::check(!format->global_scale || is_solvable(rule.arithmetic, stored), "a normal global scale");
  twofour::check(!rule.pattern || format->global_scale, "a pattern with NVFP4 alone");
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
  plan.scale_below = scales_below(format);
  plan.block = static_cast<int>(solved_block(format));
  plan.last_scale = last_scale_of(format);
  plan.is_fixed = has_fixed_scales(format);
  plan.has_powers = !plan.is_fixed && !format->global_scale;
  const CodeGrid& grid = format->grid;
  plan.largest = grid.largest;
  plan.mantissa = grid.mantissa;
  plan.top = grid.top();
  plan.lowest = (grid.lowest + 127) << 23;
  plan.magic = (23 - grid.mantissa) << 23 | 0x400000;
  return plan;
}

void check_input(const SolveRule& rule, int64_t k, const SolveInput& in) {
  twofour::check(k > 0 && k % solved_block(rule.format) == 0, "k a multiple of a block");
  twofour::check(!has_fixed_scales(rule.format) ||
                     in.steps.size() * static_cast<size_t>(kSolveBlock) == in.weights.size(),
                 "a given scale for 16 weights");
  twofour::check(in.weights.size() % static_cast<size_t>(k) == 0, "whole rows");
  twofour::check(in.mask.empty() || (rule.pattern && in.mask.size() == in.weights.size()),
                 "a mask of the weights");
}

}  // namespace twofour
