#pragma once
#include <cstdint>

#include "formats/hd.h"
#include "kernels/solve/group_maps.h"
#include "kernels/solve/solve_ops.h"

// The arithmetic of solvers. `L` defines what a number is. It is either a vector with one number for each of
// W rows (solve_lanes.h), or a number of one row, as in a thread of a GPU (device_solve_cuda.cu). Rows do not
// influence each other, so the bits are the same. L is local to the file that includes this file, so no
// function is emitted twice.

namespace twofour {
namespace {

/// The nearest number of the grid, ties to the even code, saturating at the largest magnitude. `code` gets
/// the code of the magnitude.
template <class L>
TWOFOUR_HD typename L::F nearest_unit(const SolvePlan& plan, typename L::F x, typename L::I* code = nullptr) {
  using F = typename L::F;
  using I = typename L::I;
  F a = L::magnitude(x);
  a = L::pick(a < L::splat(plan.largest), a, L::splat(plan.largest));
  I exponent = L::bits(a) & 0x7F800000;
  exponent = L::pick(exponent < L::splat(plan.lowest), L::splat(plan.lowest), exponent);
  const I magic = exponent + plan.magic;
  const F sum = a + L::floats(magic);
  if (code != nullptr) *code = (((exponent - plan.lowest) >> 23) << plan.mantissa) + (L::bits(sum) - magic);
  return L::floats(L::bits(sum - L::floats(magic)) | (L::bits(x) & static_cast<int32_t>(0x80000000u)));
}

template <class L>
TWOFOUR_HD typename L::I clamp_scale(const SolvePlan& plan, typename L::I code) {
  code = L::pick(code < L::splat(1), L::splat(1), code);
  return L::pick(code > L::splat(plan.last_scale), L::splat(plan.last_scale), code);
}

/// The block scale whose step is nearest to `want`.
template <class L>
TWOFOUR_HD typename L::I nearest_step(const SolvePlan& plan, typename L::F want) {
  if (!plan.has_powers) return L::nearest_scales(plan, want * plan.to_code);
  // From above 1.5 times a power of two, the next one is nearer.
  const typename L::I code = (L::bits(want) + 0x3FFFFF) >> 23;
  return clamp_scale<L>(plan, L::pick(want > typename L::F{}, code, typename L::I{}));
}

/// The block scale with the least weighted squared error. It is searched from `scale_below` below to
/// `scale_search` above the scale of the largest magnitude. If errors are equal, the lowest scale is chosen.
template <class Pattern, class L>
TWOFOUR_HD typename L::I search_scale(const SolvePlan& plan, const typename L::F* x, const float* weights) {
  using F = typename L::F;
  F largest = {};
  TWOFOUR_UNROLL
  for (int i = 0; i < Pattern::kBlock; ++i) largest = L::larger(largest, L::magnitude(x[i]));
  typename L::I base = {};
  if (plan.has_powers) {
    base = (L::bits(largest) >> 23) - plan.top;
  } else {
    base = L::nearest_scales(plan, largest / L::splat(plan.largest) * plan.to_code);
    base = L::pick(largest == F{}, L::splat(0x38), base);
  }
  typename L::I best = base;
  F least = L::splat(__builtin_inff());
  TWOFOUR_LOOP
  for (int d = -plan.scale_below; d <= plan.scale_search; ++d) {
    const typename L::I code = clamp_scale<L>(plan, base + d);
    const F step = L::look_up(plan.step, code), inverse = L::look_up(plan.inverse, code);
    F loss = {};
    TWOFOUR_UNROLL
    for (int i = 0; i < Pattern::kBlock; ++i) {
      const F e = x[i] - nearest_unit<L>(plan, x[i] * inverse) * step;
      loss = loss + e * e * weights[i];
    }
    const typename L::I better = loss < least;
    least = L::pick(better, loss, least);
    best = L::pick(better, code, best);
  }
  return best;
}

/// The step of a block's scale. Finds the scale if it is not fixed. `x` are the numbers that stay.
template <class Pattern, class L>
TWOFOUR_HD typename L::F choose_step(const SolvePlan& plan, const SolveTile& tile, int64_t first, int lane,
                                     const typename L::F* x, const float* weights) {
  const int64_t at = first / Pattern::kBlock * kSolveRows + lane;
  if (plan.is_fixed) return L::load(tile.steps + at);
  const typename L::I scale = search_scale<Pattern, L>(plan, x, weights);
  L::store(tile.scales + at, scale);
  return L::look_up(plan.step, scale);
}

/// The lanes whose masks keep column i.
template <class Pattern, class L>
TWOFOUR_HD typename L::I keeps(typename L::I mask, int i) {
  typename L::I kept = {};
  TWOFOUR_UNROLL
  for (int m = 0; m < Pattern::kMasks; ++m) {
    TWOFOUR_UNROLL
    for (int j = 0; j < Pattern::kKept; ++j) {
      if (Pattern::column(m, j) == i) kept = kept | (mask == L::splat(m));
    }
  }
  return kept;
}

/// The mask with the largest sum of scores. If sums are equal, the mask with the lowest number is chosen.
template <class Pattern, class L>
TWOFOUR_HD typename L::I best_mask(const typename L::F* scores) {
  typename L::I best = {};
  typename L::F top = L::splat(-1.0f);
  TWOFOUR_UNROLL
  for (int m = 0; m < Pattern::kMasks; ++m) {
    typename L::F sum = {};
    TWOFOUR_UNROLL
    for (int j = 0; j < Pattern::kKept; ++j) sum = sum + scores[Pattern::column(m, j)];
    const typename L::I better = sum > top;
    top = L::pick(better, sum, top);
    best = L::pick(better, L::splat(m), best);
  }
  return best;
}

/// The masks of a block's groups. If masks are given, they are used. Otherwise each group gets the mask with
/// the largest sum of x^2 times weights.
template <class Pattern, class L>
TWOFOUR_HD void choose_masks(const SolveTile& tile, int64_t first, int lane, const typename L::F* x,
                             const float* weights, typename L::I* masks) {
  TWOFOUR_UNROLL
  for (int j = 0; j < Pattern::kBlock / Pattern::kGroup; ++j) {
    if (tile.is_given) {
      masks[j] = L::load(tile.masks + (first / Pattern::kGroup + j) * kSolveRows + lane);
      continue;
    }
    typename L::F scores[Pattern::kGroup];
    TWOFOUR_UNROLL
    for (int i = 0; i < Pattern::kGroup; ++i) {
      const typename L::F one = x[j * Pattern::kGroup + i];
      scores[i] = one * one * weights[j * Pattern::kGroup + i];
    }
    masks[j] = best_mask<Pattern, L>(scores);
  }
}

/// Keeps x in columns that stay, and sets the others to 0.
template <class Pattern, class L>
TWOFOUR_HD void keep_masked(const typename L::F* x, const typename L::I* masks, typename L::F* out) {
  TWOFOUR_UNROLL
  for (int i = 0; i < Pattern::kBlock; ++i) {
    out[i] =
        L::pick(keeps<Pattern, L>(masks[i / Pattern::kGroup], i % Pattern::kGroup), x[i], typename L::F{});
  }
}

/// OBS for a group under one mask. Computes the values and errors of the group's columns. Returns the sum of
/// the squared errors.
template <class Pattern, class L>
TWOFOUR_HD typename L::F solve_group(const SolvePlan& plan, const typename L::F* x, const float* factor,
                                     int mask, typename L::F step, typename L::F inverse,
                                     typename L::F* values, typename L::F* errors) {
  constexpr int kGroup = Pattern::kGroup;
  const int64_t k = plan.k;
  typename L::F y[kGroup], loss = {};
  TWOFOUR_UNROLL
  for (int i = 0; i < kGroup; ++i) y[i] = x[i];
  TWOFOUR_UNROLL
  for (int i = 0; i < kGroup; ++i) {
    bool kept = false;
    TWOFOUR_UNROLL
    for (int j = 0; j < Pattern::kKept; ++j) kept = kept || Pattern::column(mask, j) == i;
    values[i] = kept ? nearest_unit<L>(plan, y[i] * inverse) * step : typename L::F{};
    errors[i] = (y[i] - values[i]) * (1.0f / factor[i * k + i]);
    loss = loss + errors[i] * errors[i];
    TWOFOUR_UNROLL
    for (int t = i + 1; t < kGroup; ++t) y[t] = y[t] - errors[i] * factor[i * k + t];
  }
  return loss;
}

/// Moves the scale of a block to the best neighbour of the scale that fits its codes by least squares.
/// Returns the change of the loss.
template <class Pattern, class L>
TWOFOUR_HD typename L::F move_scale(const SolvePlan& plan, const float* h, typename L::F* x, typename L::F* g,
                                    typename L::I& scale) {
  using F = typename L::F;
  const F step = L::look_up(plan.step, scale), inverse = L::look_up(plan.inverse, scale);
  F unit[Pattern::kBlock], hu[Pattern::kBlock], curve = {}, slope = {};
  TWOFOUR_UNROLL
  for (int i = 0; i < Pattern::kBlock; ++i) unit[i] = nearest_unit<L>(plan, x[i] * inverse);
  TWOFOUR_UNROLL
  for (int i = 0; i < Pattern::kBlock; ++i) {
    hu[i] = F{};
    TWOFOUR_UNROLL
    for (int j = 0; j < Pattern::kBlock; ++j) hu[i] = hu[i] + unit[j] * h[j * plan.k + i];
  }
  TWOFOUR_UNROLL
  for (int i = 0; i < Pattern::kBlock; ++i) {
    curve = curve + hu[i] * unit[i];
    slope = slope + unit[i] * g[i];
  }
  const typename L::I has_codes = curve > F{};
  const F want = step + L::pick(has_codes, slope / L::pick(has_codes, curve, L::splat(1.0f)), F{});
  const typename L::I near = nearest_step<L>(plan, want);
  typename L::I best = scale;
  F gain = {};
  TWOFOUR_UNROLL
  for (int d = -1; d <= 1; ++d) {
    const typename L::I code = clamp_scale<L>(plan, near + d);
    const F change = L::look_up(plan.step, code) - step;
    const F f = change * change * curve - 2.0f * change * slope;
    const typename L::I better = f < gain;
    gain = L::pick(better, f, gain);
    best = L::pick(better, code, best);
  }
  const F now = L::look_up(plan.step, best), change = now - step;
  const typename L::I moved = best != scale;
  TWOFOUR_UNROLL
  for (int i = 0; i < Pattern::kBlock; ++i) {
    x[i] = L::pick(moved, unit[i] * now, x[i]);
    g[i] = L::pick(moved, g[i] - hu[i] * change, g[i]);
  }
  scale = best;
  return gain;
}

/// Gives a group the mask and the codes with the least loss. All other groups are fixed. `h` is Hd at the
/// group. Returns the change of the loss.
template <class Pattern, class L>
TWOFOUR_HD typename L::F move_group(const SolvePlan& plan, const float* h, const float* maps,
                                    const typename L::I* given, typename L::F step, typename L::F inverse,
                                    typename L::F* x, const typename L::F* g, typename L::F* change) {
  using F = typename L::F;
  constexpr int kGroup = Pattern::kGroup, kKept = Pattern::kKept;
  F least = {};
  TWOFOUR_UNROLL
  for (int i = 0; i < kGroup; ++i) change[i] = F{};
  TWOFOUR_UNROLL
  for (int m = 0; m < Pattern::kMasks; ++m, maps += kMaskNumbers<Pattern>) {
    bool kept[kGroup] = {};
    TWOFOUR_UNROLL
    for (int j = 0; j < kKept; ++j) kept[Pattern::column(m, j)] = true;
    F pull[kKept], best[kKept];
    TWOFOUR_UNROLL
    for (int j = 0; j < kKept; ++j) {
      pull[j] = g[Pattern::column(m, j)];
      TWOFOUR_UNROLL
      for (int i = 0; i < kGroup; ++i) {
        if (!kept[i]) pull[j] = pull[j] + x[i] * h[Pattern::column(m, j) * plan.k + i];
      }
    }
    TWOFOUR_UNROLL
    for (int j = 0; j < kKept; ++j) {
      best[j] = x[Pattern::column(m, j)];
      TWOFOUR_UNROLL
      for (int i = 0; i < kKept; ++i) best[j] = best[j] + pull[i] * maps[j * kKept + i];
    }
    TWOFOUR_UNROLL
    for (int order = 0; order < 2; ++order) {
      const float* ratios = maps + (1 + order) * kKept * kKept;
      F y[kKept], delta[kGroup];
      TWOFOUR_UNROLL
      for (int j = 0; j < kKept; ++j) y[j] = best[order == 0 ? j : kKept - 1 - j];
      TWOFOUR_UNROLL
      for (int i = 0; i < kGroup; ++i) delta[i] = -x[i];
      TWOFOUR_UNROLL
      for (int j = 0; j < kKept; ++j) {
        const int column = Pattern::column(m, order == 0 ? j : kKept - 1 - j);
        const F value = nearest_unit<L>(plan, y[j] * inverse) * step;
        TWOFOUR_UNROLL
        for (int t = j + 1; t < kKept; ++t) y[t] = y[t] - (y[j] - value) * ratios[j * kKept + t];
        delta[column] = value - x[column];
      }
      F f = {};
      TWOFOUR_UNROLL
      for (int i = 0; i < kGroup; ++i) {
        F t = -2.0f * g[i];
        TWOFOUR_UNROLL
        for (int c = 0; c < kGroup; ++c) t = t + delta[c] * h[c * plan.k + i];
        f = f + t * delta[i];
      }
      typename L::I better = f < least;
      if (given != nullptr) better = better & (*given == L::splat(m));
      least = L::pick(better, f, least);
      TWOFOUR_UNROLL
      for (int i = 0; i < kGroup; ++i) change[i] = L::pick(better, delta[i], change[i]);
    }
  }
  return least;
}

}  // namespace
}  // namespace twofour
