#pragma once
#include <cstdint>

#include "formats/hd.h"
#include "kernels/solve/solve_numbers.h"

// The steps of solvers for one block of columns, which share a scale. They work on the rows of one `L`,
// beginning at row `lane`. Changes of values that affect other columns are stored in the tile's errors.

namespace twofour {
namespace {

/// OBS for a block of columns. Scale, masks and codes are chosen together. Errors are stored for later
/// columns.
template <class Pattern, class L>
TWOFOUR_HD void joint_block(const SolvePlan& plan, const SolveTile& tile, int64_t first, int lane) {
  using F = typename L::F;
  constexpr int kGroup = Pattern::kGroup;
  const int64_t k = plan.k;
  const float* u = plan.factor + first * k + first;
  float weights[Pattern::kBlock];
  TWOFOUR_UNROLL
  for (int i = 0; i < Pattern::kBlock; ++i) weights[i] = 1.0f / (u[i * k + i] * u[i * k + i]);
  F x[Pattern::kBlock], some[Pattern::kBlock], e[Pattern::kBlock];
  typename L::I masks[Pattern::kBlock / kGroup];
  TWOFOUR_UNROLL
  for (int i = 0; i < Pattern::kBlock; ++i) x[i] = L::load(tile.values + (first + i) * kSolveRows + lane);
  choose_masks<Pattern, L>(tile, first, lane, x, weights, masks);
  keep_masked<Pattern, L>(x, masks, some);
  const F step = choose_step<Pattern, L>(plan, tile, first, lane, some, weights),
          inverse = L::splat(1.0f) / step;
  TWOFOUR_LOOP
  for (int j = 0; j < Pattern::kBlock; j += kGroup) {
    F least = L::splat(__builtin_inff()), values[kGroup] = {}, errors[kGroup] = {};
    TWOFOUR_UNROLL
    for (int m = 0; m < Pattern::kMasks; ++m) {
      F v[kGroup], d[kGroup];
      const F loss = solve_group<Pattern, L>(plan, x + j, u + j * k + j, m, step, inverse, v, d);
      typename L::I better = loss < least;
      if (tile.is_given) better = better & (masks[j / kGroup] == L::splat(m));
      least = L::pick(better, loss, least);
      TWOFOUR_UNROLL
      for (int i = 0; i < kGroup; ++i) {
        values[i] = L::pick(better, v[i], values[i]);
        errors[i] = L::pick(better, d[i], errors[i]);
      }
    }
    TWOFOUR_UNROLL
    for (int i = 0; i < kGroup; ++i) {
      x[j + i] = values[i];
      e[j + i] = errors[i];
      TWOFOUR_UNROLL
      for (int t = j + kGroup; t < Pattern::kBlock; ++t) x[t] = x[t] - errors[i] * u[(j + i) * k + t];
    }
  }
  TWOFOUR_UNROLL
  for (int i = 0; i < Pattern::kBlock; ++i) {
    L::store(tile.values + (first + i) * kSolveRows + lane, x[i]);
    L::store(tile.errors + i * kSolveRows + lane, e[i]);
  }
}

/// Chooses the masks of a block by squared weights times the diagonal if `masked` is true. Then chooses its
/// scale and its codes by squared errors.
template <class Pattern, class L>
TWOFOUR_HD void round_block(const SolvePlan& plan, const SolveTile& tile, int64_t first, int lane,
                            bool masked, bool weighted) {
  using F = typename L::F;
  float weights[Pattern::kBlock];
  TWOFOUR_UNROLL
  for (int i = 0; i < Pattern::kBlock; ++i) weights[i] = weighted ? plan.diagonal[first + i] : 1.0f;
  F x[Pattern::kBlock];
  TWOFOUR_UNROLL
  for (int i = 0; i < Pattern::kBlock; ++i) x[i] = L::load(tile.values + (first + i) * kSolveRows + lane);
  if (masked) {
    typename L::I masks[Pattern::kBlock / Pattern::kGroup];
    choose_masks<Pattern, L>(tile, first, lane, x, plan.diagonal + first, masks);
    keep_masked<Pattern, L>(x, masks, x);
  }
  const F step = choose_step<Pattern, L>(plan, tile, first, lane, x, weights),
          inverse = L::splat(1.0f) / step;
  TWOFOUR_UNROLL
  for (int i = 0; i < Pattern::kBlock; ++i) {
    L::store(tile.values + (first + i) * kSolveRows + lane, nearest_unit<L>(plan, x[i] * inverse) * step);
  }
}

/// Descent in one block: first its scale, then its groups.
template <class Pattern, class L>
TWOFOUR_HD void sweep_block(const SolvePlan& plan, const SolveTile& tile, int64_t first, int lane) {
  using F = typename L::F;
  constexpr int kGroup = Pattern::kGroup;
  const int64_t k = plan.k;
  const float* h = plan.matrix + first * k + first;
  F x[Pattern::kBlock], before[Pattern::kBlock], g[Pattern::kBlock];
  TWOFOUR_UNROLL
  for (int i = 0; i < Pattern::kBlock; ++i) {
    before[i] = x[i] = L::load(tile.values + (first + i) * kSolveRows + lane);
    g[i] = L::load(tile.gradient + (first + i) * kSolveRows + lane);
  }
  const int64_t at = first / Pattern::kBlock * kSolveRows + lane;
  const typename L::I moves = L::load(tile.moves + lane);
  F step, gain = {};
  if (plan.is_fixed) {
    step = L::load(tile.steps + at);
  } else {
    const typename L::I old = L::load(tile.scales + at);
    typename L::I scale = old;
    gain = move_scale<Pattern, L>(plan, h, x, g, scale);
    step = L::look_up(plan.step, scale);
    L::store(tile.scales + at, L::pick(moves, scale, old));
  }
  const F inverse = L::splat(1.0f) / step;
  TWOFOUR_LOOP
  for (int j = 0; j < Pattern::kBlock; j += kGroup) {
    typename L::I given = {};
    if (tile.is_given) given = L::load(tile.masks + (first + j) / kGroup * kSolveRows + lane);
    F change[kGroup];
    gain = gain + move_group<Pattern, L>(
                      plan, h + j * k + j, plan.maps + (first + j) / kGroup * kGroupNumbers<Pattern>,
                      tile.is_given ? &given : nullptr, step, inverse, x + j, g + j, change);
    TWOFOUR_UNROLL
    for (int i = 0; i < kGroup; ++i) {
      x[j + i] = nearest_unit<L>(plan, (x[j + i] + change[i]) * inverse) * step;
      TWOFOUR_UNROLL
      for (int t = 0; t < Pattern::kBlock; ++t) g[t] = g[t] - change[i] * h[(j + i) * k + t];
    }
  }
  L::store(tile.gains + lane, L::load(tile.gains + lane) - L::pick(moves, gain, F{}));
  TWOFOUR_UNROLL
  for (int i = 0; i < Pattern::kBlock; ++i) {
    x[i] = L::pick(moves, x[i], before[i]);
    L::store(tile.values + (first + i) * kSolveRows + lane, x[i]);
    L::store(tile.errors + i * kSolveRows + lane, x[i] - before[i]);
  }
}

}  // namespace
}  // namespace twofour
