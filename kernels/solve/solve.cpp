#include "kernels/solve/solve.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/device/check.h"
#include "kernels/numbers/quantize_mx.h"
#include "kernels/solve/group_maps.h"
#include "kernels/solve/solve_ops.h"
#include "kernels/solve/solve_plan.h"

namespace twofour {
namespace {

/// Rows of a matrix that are solved together.
class Tile {
 public:
  Tile(const SolvePlan& plan, WeightFormat format)
      : k_(plan.k),
        group_(plan.group),
        block_(plan.block),
        format_(format),
        values_(static_cast<size_t>(k_ * kSolveRows)),
        target_(values_.size()),
        gradient_(values_.size()),
        errors_(kMostBlock * kSolveRows),
        steps_(plan.is_fixed ? static_cast<size_t>(k_ / block_ * kSolveRows) : 0, 1.0f),
        gains_(kSolveRows),
        losses_(kSolveRows),
        scales_(static_cast<size_t>(k_ / block_ * kSolveRows)),
        masks_(static_cast<size_t>(k_ / group_ * kSolveRows)),
        moves_(kSolveRows) {}

  /// Loads rows [first, first + count). Missing rows become zeros.
  void load(const SolveInput& in, std::optional<PrunePattern> pattern, int64_t first, int64_t count) {
    count_ = count;
    is_given_ = pattern && !in.mask.empty();
    for (int64_t r = 0; r < kSolveRows; ++r) {
      for (int64_t i = 0; i < k_; ++i) {
        const float w = r < count ? in.weights[static_cast<size_t>((first + r) * k_ + i)] : 0;
        values_[at(i, r)] = target_[at(i, r)] = w;
      }
      for (int64_t b = 0; !steps_.empty() && b < k_ / block_; ++b)
        steps_[at(b, r)] = r < count ? in.steps[static_cast<size_t>((first + r) * (k_ / block_) + b)] : 1;
      for (int64_t j = 0; is_given_ && j < k_ / group_; ++j) {
        masks_[at(j, r)] =
            r < count ? mask_of(&in.mask[static_cast<size_t>((first + r) * k_ + j * group_)], group_) : 0;
      }
    }
  }

  SolveTile view() {
    return {values_.data(), gradient_.data(), errors_.data(), scales_.data(), steps_.data(),
            masks_.data(),  is_given_,        gains_.data(),  moves_.data()};
  }

  void descend(const SolvePlan& plan, const SolveOps& ops, int sweeps) {
    start_descent(plan, ops);
    for (int sweep = 0; sweep < sweeps; ++sweep) {
      std::fill(gains_.begin(), gains_.end(), 0.0f);
      ops.sweep(plan, view());
      bool goes_on = false;
      for (size_t r = 0; r < kSolveRows; ++r) {
        if (gains_[r] <= plan.min_gain * losses_[r]) moves_[r] = 0;
        losses_[r] -= gains_[r];
        goes_on = goes_on || moves_[r] != 0;
      }
      if (!goes_on) return;
    }
  }

  void store(const ScaleSteps& steps, uint8_t zero_scale, int64_t first, const SolveOutput& out) const {
    const int64_t bytes = format_->code_bytes(block_), blocks = k_ / block_;
    uint8_t codes[kMostBlock];
    for (int64_t r = 0; r < count_; ++r) {
      for (int64_t b = 0; b < blocks; ++b) {
        const auto scale = static_cast<size_t>(scales_[at(b, r)]);
        const float inverse = steps_.empty() ? steps.inverse[scale] : 1.0f / steps_[at(b, r)];
        bool any = false;
        for (int64_t i = 0; i < block_; ++i) {
          unsigned code = code_from_float(format_->grid, values_[at(b * block_ + i, r)] * inverse);
          if (code == format_->grid.sign()) code = 0;
          any = any || code != 0;
          codes[i] = static_cast<uint8_t>(code);
        }
        const int64_t place = (first + r) * blocks + b;
        pack_codes(format_->grid, {codes, static_cast<size_t>(block_)}, out.codes + place * bytes);
        if (steps_.empty()) out.scales[place] = any ? static_cast<uint8_t>(scale) : zero_scale;
      }
    }
  }

 private:
  size_t at(int64_t column, int64_t row) const { return static_cast<size_t>(column * kSolveRows + row); }

  /// Computes (W - Q) Hd and the loss of each row.
  void start_descent(const SolvePlan& plan, const SolveOps& ops) {
    std::fill(gradient_.begin(), gradient_.end(), 0.0f);
    for (int64_t b = 0; b < k_; b += kSolveBlock) {
      for (int64_t i = 0; i < kSolveBlock * kSolveRows; ++i) {
        const auto own = static_cast<size_t>(b * kSolveRows + i);
        errors_[static_cast<size_t>(i)] = values_[own] - target_[own];
      }
      ops.subtract(plan.matrix, k_, b, 0, errors_.data(), gradient_.data());
    }
    for (int64_t r = 0; r < kSolveRows; ++r) {
      float sum = 0;
      for (int64_t i = 0; i < k_; ++i) sum += (target_[at(i, r)] - values_[at(i, r)]) * gradient_[at(i, r)];
      losses_[static_cast<size_t>(r)] = sum;
      moves_[static_cast<size_t>(r)] = r < count_ ? -1 : 0;
    }
  }

  int64_t k_;
  int group_, block_;
  WeightFormat format_;
  int64_t count_ = 0;
  bool is_given_ = false;
  std::vector<float> values_, target_, gradient_, errors_, steps_, gains_, losses_;
  std::vector<int32_t> scales_, masks_, moves_;
};

/// Inverts the kept part of Hd by elimination. It needs no pivoting, because the matrix is positive definite.
void invert_small(double* a, int n) {
  for (int p = 0; p < n; ++p) {
    const double pivot = 1 / a[p * n + p];
    for (int i = 0; i < n; ++i) {
      if (i == p) continue;
      const double factor = a[i * n + p] * pivot;
      for (int j = 0; j < n; ++j) {
        if (j != p) a[i * n + j] -= factor * a[p * n + j];
      }
      a[i * n + p] = -factor;
    }
    for (int j = 0; j < n; ++j) {
      if (j != p) a[p * n + j] *= pivot;
    }
    a[p * n + p] = pivot;
  }
}

template <class Pattern>
std::vector<float> maps_of(const DampedHessian& hessian) {
  constexpr int n = Pattern::kKept;
  std::vector<float> out;
  out.reserve(static_cast<size_t>(hessian.k / Pattern::kGroup * kGroupNumbers<Pattern>));
  for (int64_t first = 0; first < hessian.k; first += Pattern::kGroup) {
    for (int mask = 0; mask < Pattern::kMasks; ++mask) {
      double inverse[n * n];
      for (int i = 0; i < n; ++i) {
        for (int j = 0; j < n; ++j)
          inverse[i * n + j] = double{hessian.matrix[static_cast<size_t>(
              (first + Pattern::column(mask, i)) * hessian.k + first + Pattern::column(mask, j))]};
      }
      invert_small(inverse, n);
      for (const double p : inverse) out.push_back(static_cast<float>(p));
      for (const bool backwards : {false, true}) {
        double rest[n * n];  // remaining inverse after earlier columns are fixed
        for (int i = 0; i < n; ++i) {
          for (int j = 0; j < n; ++j)
            rest[i * n + j] = backwards ? inverse[(n - 1 - i) * n + n - 1 - j] : inverse[i * n + j];
        }
        for (int i = 0; i < n; ++i) {
          double ratio[n] = {};
          for (int t = i + 1; t < n; ++t) ratio[t] = rest[i * n + t] / rest[i * n + i];
          for (const double r : ratio) out.push_back(static_cast<float>(r));
          for (int a = i + 1; a < n; ++a) {
            for (int b = i + 1; b < n; ++b) rest[a * n + b] -= ratio[a] * rest[i * n + b];
          }
        }
      }
    }
  }
  return out;
}

void solve_tiles(const SolveRule& rule, const SolvePlan& plan, const ScaleSteps& steps, const SolveInput& in,
                 const SolveOutput& out, int threads, Isa isa) {
  const SolveOps& ops = solve_ops(isa);
  check_input(rule, plan.k, in);
  const auto rows = static_cast<int64_t>(in.weights.size()) / plan.k;
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    Tile tile(plan, rule.format);
#pragma omp for schedule(dynamic)
    for (int64_t first = 0; first < rows; first += kSolveRows) {
      tile.load(in, rule.pattern, first, std::min<int64_t>(kSolveRows, rows - first));
      switch (rule.method) {
        case SolveMethod::joint:
          ops.joint(plan, tile.view());
          break;
        case SolveMethod::diagonal:
          ops.round(plan, tile.view(), rule.pattern.has_value(), true);
          break;
      }
      if (rule.sweeps > 0) tile.descend(plan, ops, rule.sweeps);
      tile.store(steps, rule.zero_scale, first, out);
    }
  }
}

}  // namespace

GroupMaps::GroupMaps(const DampedHessian& hessian, std::optional<PrunePattern> pattern)
    : pattern_(pattern),
      numbers_(!pattern                          ? maps_of<AllOfFour>(hessian)
               : *pattern == PrunePattern::k2of4 ? maps_of<TwoOfFour>(hessian)
                                                 : maps_of<FourOfEightPaired>(hessian)) {}

uint8_t zero_scale_of(const QuantizeRule& rule, const GlobalScale& global) {
  const std::array<float, kSolveBlock> zeros{};
  uint8_t codes[kSolveBlock / 2] = {}, scale = 0;
  quantize_nvfp4(rule, global, zeros, codes, &scale);
  return scale;
}

bool is_solvable(Arithmetic arithmetic, float stored) {
  for (const uint8_t code : {uint8_t{1}, uint8_t{126}}) {
    const float step = step_of(arithmetic, code, stored);
    if (!std::isnormal(step) || !std::isnormal(1.0f / step) || step < 0) return false;
  }
  return std::isnormal(stored) && std::isnormal(1.0f / stored);
}

void solve_rows(const SolveRule& rule, const DampedHessian& hessian, const GroupMaps* maps, float stored,
                const SolveInput& in, const SolveOutput& out, int threads, Isa isa) {
  const ScaleSteps steps(rule, stored);
  SolvePlan plan = plan_of(rule, steps, hessian.k, stored);
  std::vector<float> diagonal;
  for (int64_t j = 0; j < hessian.k; ++j)
    diagonal.push_back(hessian.matrix[static_cast<size_t>(j * (hessian.k + 1))]);
  plan.matrix = hessian.matrix.data();
  plan.factor = hessian.factor.data();
  plan.diagonal = diagonal.data();
  twofour::check(rule.method == SolveMethod::diagonal || !hessian.factor.empty(), "a factor of the Hessian");
  if (rule.sweeps > 0) {
    twofour::check(maps != nullptr && maps->pattern() == rule.pattern, "maps of the same pattern");
    plan.maps = maps->numbers().data();
  }
  solve_tiles(rule, plan, steps, in, out, threads, isa);
}

void solve_rows_by_diagonal(const SolveRule& rule, std::span<const float> diagonal, float stored,
                            const SolveInput& in, const SolveOutput& out, int threads, Isa isa) {
  twofour::check(rule.method == SolveMethod::diagonal && rule.sweeps == 0, "the diagonal method alone");
  const ScaleSteps steps(rule, stored);
  SolvePlan plan = plan_of(rule, steps, static_cast<int64_t>(diagonal.size()), stored);
  plan.diagonal = diagonal.data();
  solve_tiles(rule, plan, steps, in, out, threads, isa);
}

}  // namespace twofour
