#pragma once
#include <cstdint>

#include "formats/hd.h"
#include "kernels/solve/solve_numbers.h"

// The steps of solvers for one block of 16 columns. They work on the rows of one `L`, beginning at row
// `lane`. Changes of values that affect other columns are stored in the tile's errors.

namespace twofour {
namespace {

/// OBS for a block of 16 columns. Scale, masks and codes are chosen together. Errors are stored for later
/// columns.
template <class Pattern, class L>
TWOFOUR_HD void joint_block(const SolvePlan& plan, const SolveTile& tile, int64_t first, int lane) {
  using F = typename L::F;
  constexpr int kGroup = Pattern::kGroup;
  const int64_t k = plan.k;
  const float* u = plan.factor + first * k + first;
  float weights[kSolveBlock];
  TWOFOUR_UNROLL
  for (int i = 0; i < kSolveBlock; ++i) weights[i] = 1.0f / (u[i * k + i] * u[i * k + i]);
  F x[kSolveBlock], some[kSolveBlock], e[kSolveBlock];
  typename L::I masks[kSolveBlock / kGroup];
  TWOFOUR_UNROLL
  for (int i = 0; i < kSolveBlock; ++i) x[i] = L::load(tile.values + (first + i) * kSolveRows + lane);
  choose_masks<Pattern, L>(tile, first, lane, x, weights, masks);
  keep_masked<Pattern, L>(x, masks, some);
  const typename L::I scale = search_scale<L>(plan, some, weights);
  L::store(tile.scales + first / kSolveBlock * kSolveRows + lane, scale);
  const F step = L::look_up(plan.step, scale), inverse = L::look_up(plan.inverse, scale);
  TWOFOUR_LOOP
  for (int j = 0; j < kSolveBlock; j += kGroup) {
    F least = L::splat(__builtin_inff()), values[kGroup] = {}, errors[kGroup] = {};
    TWOFOUR_UNROLL
    for (int m = 0; m < Pattern::kMasks; ++m) {
      F v[kGroup], d[kGroup];
      const F loss = solve_group<Pattern, L>(x + j, u + j * k + j, k, m, step, inverse, v, d);
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
      for (int t = j + kGroup; t < kSolveBlock; ++t) x[t] = x[t] - errors[i] * u[(j + i) * k + t];
    }
  }
  TWOFOUR_UNROLL
  for (int i = 0; i < kSolveBlock; ++i) {
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
  float weights[kSolveBlock];
  TWOFOUR_UNROLL
  for (int i = 0; i < kSolveBlock; ++i) weights[i] = weighted ? plan.diagonal[first + i] : 1.0f;
  F x[kSolveBlock];
  TWOFOUR_UNROLL
  for (int i = 0; i < kSolveBlock; ++i) x[i] = L::load(tile.values + (first + i) * kSolveRows + lane);
  if (masked) {
    typename L::I masks[kSolveBlock / Pattern::kGroup];
    choose_masks<Pattern, L>(tile, first, lane, x, plan.diagonal + first, masks);
    keep_masked<Pattern, L>(x, masks, x);
  }
  const typename L::I scale = search_scale<L>(plan, x, weights);
  L::store(tile.scales + first / kSolveBlock * kSolveRows + lane, scale);
  const F step = L::look_up(plan.step, scale), inverse = L::look_up(plan.inverse, scale);
  TWOFOUR_UNROLL
  for (int i = 0; i < kSolveBlock; ++i) {
    L::store(tile.values + (first + i) * kSolveRows + lane, nearest_unit<L>(x[i] * inverse) * step);
  }
}

/// Descent in one block: first its scale, then its groups.
template <class Pattern, class L>
TWOFOUR_HD void sweep_block(const SolvePlan& plan, const SolveTile& tile, int64_t first, int lane) {
  using F = typename L::F;
  constexpr int kGroup = Pattern::kGroup;
  const int64_t k = plan.k;
  const float* h = plan.matrix + first * k + first;
  F x[kSolveBlock], before[kSolveBlock], g[kSolveBlock];
  TWOFOUR_UNROLL
  for (int i = 0; i < kSolveBlock; ++i) {
    before[i] = x[i] = L::load(tile.values + (first + i) * kSolveRows + lane);
    g[i] = L::load(tile.gradient + (first + i) * kSolveRows + lane);
  }
  int32_t* scales = tile.scales + first / kSolveBlock * kSolveRows + lane;
  const typename L::I moves = L::load(tile.moves + lane), old = L::load(scales);
  typename L::I scale = old;
  F gain = move_scale<L>(plan, h, x, g, scale);
  const F step = L::look_up(plan.step, scale), inverse = L::look_up(plan.inverse, scale);
  TWOFOUR_LOOP
  for (int j = 0; j < kSolveBlock; j += kGroup) {
    typename L::I given = {};
    if (tile.is_given) given = L::load(tile.masks + (first + j) / kGroup * kSolveRows + lane);
    F change[kGroup];
    gain = gain + move_group<Pattern, L>(
                      plan, h + j * k + j, plan.maps + (first + j) / kGroup * kGroupNumbers<Pattern>,
                      tile.is_given ? &given : nullptr, step, inverse, x + j, g + j, change);
    TWOFOUR_UNROLL
    for (int i = 0; i < kGroup; ++i) {
      x[j + i] = nearest_unit<L>((x[j + i] + change[i]) * inverse) * step;
      TWOFOUR_UNROLL
      for (int t = 0; t < kSolveBlock; ++t) g[t] = g[t] - change[i] * h[(j + i) * k + t];
    }
  }
  L::store(scales, L::pick(moves, scale, old));
  L::store(tile.gains + lane, L::load(tile.gains + lane) - L::pick(moves, gain, F{}));
  TWOFOUR_UNROLL
  for (int i = 0; i < kSolveBlock; ++i) {
    x[i] = L::pick(moves, x[i], before[i]);
    L::store(tile.values + (first + i) * kSolveRows + lane, x[i]);
    L::store(tile.errors + i * kSolveRows + lane, x[i] - before[i]);
  }
}

}  // namespace
}  // namespace twofour
