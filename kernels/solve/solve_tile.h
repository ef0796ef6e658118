#pragma once
#include <cstdint>

#include "kernels/solve/solve_blocks.h"
#include "kernels/solve/solve_lanes.h"

// Solvers for a tile of rows. Each lane of a vector holds one of `W` rows. One file for each instruction set
// includes this file.

namespace twofour {
namespace {

/// Passes the errors of a block on to columns `from` and later.
template <class Pattern, int W>
void subtract_errors(const float* matrix, int64_t k, int64_t first, int64_t from, const float* errors,
                     float* to) {
  for (int i = 0; i < Pattern::kBlock; i += kSolveBlock)
    subtract_block<W>(matrix, k, first + i, from, errors + i * kSolveRows, to);
}

template <class Pattern, int W>
void joint(const SolvePlan& plan, const SolveTile& tile) {
  for (int64_t first = 0; first < plan.k; first += Pattern::kBlock) {
    for (int lane = 0; lane < kSolveRows; lane += W) joint_block<Pattern, Lanes<W>>(plan, tile, first, lane);
    subtract_errors<Pattern, W>(plan.factor, plan.k, first, first + Pattern::kBlock, tile.errors,
                                tile.values);
  }
}

template <class Pattern, int W>
void round_rows(const SolvePlan& plan, const SolveTile& tile, bool masked, bool weighted) {
  for (int64_t first = 0; first < plan.k; first += Pattern::kBlock) {
    for (int lane = 0; lane < kSolveRows; lane += W)
      round_block<Pattern, Lanes<W>>(plan, tile, first, lane, masked, weighted);
  }
}

template <class Pattern, int W>
void sweep(const SolvePlan& plan, const SolveTile& tile) {
  for (int64_t first = 0; first < plan.k; first += Pattern::kBlock) {
    for (int lane = 0; lane < kSolveRows; lane += W) sweep_block<Pattern, Lanes<W>>(plan, tile, first, lane);
    subtract_errors<Pattern, W>(plan.matrix, plan.k, first, 0, tile.errors, tile.gradient);
  }
}

/// Calls f<Pattern> for the pattern of the plan.
#define TWOFOUR_BY_PATTERN(plan, f, ...)                       \
  ((plan).block == 32  ? f<AllOfFourBy32, kWidth>(__VA_ARGS__) \
   : (plan).is_dense   ? f<AllOfFour, kWidth>(__VA_ARGS__)     \
   : (plan).group == 4 ? f<TwoOfFour, kWidth>(__VA_ARGS__)     \
                       : f<FourOfEightPaired, kWidth>(__VA_ARGS__))

template <int kWidth>
struct SolveFunctions {
  static void joint_rows(const SolvePlan& plan, const SolveTile& tile) {
    TWOFOUR_BY_PATTERN(plan, joint, plan, tile);
  }
  static void round(const SolvePlan& plan, const SolveTile& tile, bool masked, bool weighted) {
    TWOFOUR_BY_PATTERN(plan, round_rows, plan, tile, masked, weighted);
  }
  static void sweep_rows(const SolvePlan& plan, const SolveTile& tile) {
    TWOFOUR_BY_PATTERN(plan, sweep, plan, tile);
  }
};

#undef TWOFOUR_BY_PATTERN

template <int kWidth>
constexpr SolveOps solve_functions() {
  using Functions = SolveFunctions<kWidth>;
  return {Functions::joint_rows, Functions::round, Functions::sweep_rows, subtract_block<kWidth>,
          subtract_products<kWidth>};
}

}  // namespace
}  // namespace twofour
