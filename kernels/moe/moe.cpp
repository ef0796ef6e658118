#include "kernels/moe/moe.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "formats/error.h"

namespace twofour {
namespace {

void check(const MoeInput& in, const WeightRows& w13, const WeightRows& w2) {
  const auto m = static_cast<size_t>(in.m), h = static_cast<size_t>(in.h), t = static_cast<size_t>(in.topk);
  if (in.hidden.size() != m * h || in.topk_ids.size() != m * t || in.topk_weights.size() != m * t) {
    throw Error(fmt::format(
        "MoE input: expected hidden [{0}, {1}], ids and weights [{0}, {2}], found {3}, {4} and {5} values",
        in.m, in.h, in.topk, in.hidden.size(), in.topk_ids.size(), in.topk_weights.size()));
  }
  const bool gated = w13.n == 2 * w2.k;
  if (w13.e != w2.e || w13.k != in.h || w2.n != in.h || (!gated && w13.n != w2.k)) {
    throw Error(
        fmt::format("MoE weights: expected w13 [E, I or 2I, {0}] and w2 [E, {0}, I], found [{1}, {2}, {3}] "
                    "and [{4}, {5}, {6}]",
                    in.h, w13.e, w13.n, w13.k, w2.e, w2.n, w2.k));
  }
}

/// Numbers. If rounding is tracked, each number has the sum of the squared bounds on its roundings.
struct Numbers {
  std::vector<double> values, squares;
  Numbers(int64_t count, bool follow)
      : values(static_cast<size_t>(count)), squares(static_cast<size_t>(follow ? count : 0)) {}
};

/// Computes out[n][p] = w[n] . x[p] for all rows of one expert. x is [pairs, K] and out is [N, pairs].
/// `sum_rounding` is MoeRounding::sum.
void multiply(const WeightRows& w, const Numbers& x, int64_t pairs, double sum_rounding, Numbers& out) {
#pragma omp parallel
  {
    std::vector<double> row(static_cast<size_t>(w.k));
#pragma omp for schedule(static)
    for (int64_t n = 0; n < w.n; ++n) {
      w.row(n, row);
      for (int64_t p = 0; p < pairs; ++p) {
        double sum = 0;
        for (int64_t k = 0; k < w.k; ++k)
          sum += row[static_cast<size_t>(k)] * x.values[static_cast<size_t>(p * w.k + k)];
        out.values[static_cast<size_t>(n * pairs + p)] = sum;
        if (out.squares.empty()) continue;
        double magnitudes = 0, squares = 0;
        for (int64_t k = 0; k < w.k; ++k) {
          const double weight = row[static_cast<size_t>(k)];
          magnitudes += std::abs(weight * x.values[static_cast<size_t>(p * w.k + k)]);
          squares += weight * weight * x.squares[static_cast<size_t>(p * w.k + k)];
        }
        const double own = sum_rounding * magnitudes;
        out.squares[static_cast<size_t>(n * pairs + p)] = squares + static_cast<double>(w.k) * own * own;
      }
    }
  }
}

double activate(const MoeInput& in, double gate, double up) {
  if (in.limit > 0) {
    gate = std::min(gate, in.limit);
    up = std::clamp(up, -in.limit, in.limit);
  }
  return gate / (1 + std::exp(-gate)) * up;
}

double squared(double x) { return x * x; }

/// A bound on the slope of silu, whose largest value is 1.0999.
constexpr double kSiluSlope = 1.1;

Numbers moe(const MoeInput& in, const WeightRows& w13, const WeightRows& w2, const MoeRounding* rounding) {
  check(in, w13, w2);
  const bool gated = w13.n == 2 * w2.k, follow = rounding != nullptr;
  const double sum_rounding = follow ? rounding->sum : 0;
  Numbers out(in.m * in.h, follow);
  const auto weight_of = [&](const RoutedRow& row) {
    return static_cast<double>(in.topk_weights[static_cast<size_t>(row.m * in.topk + row.t)]);
  };
  std::vector<double> magnitudes(out.squares.size());
  for (const auto& [e, pairs] : route_rows(in.topk_ids, in.topk, w13.e, in.expert_map)) {
    const auto count = static_cast<int64_t>(pairs.size());
    Numbers x(count * in.h, follow), hidden(w13.n * count, follow);
    for (int64_t p = 0; p < count; ++p) {
      const RoutedRow& pair = pairs[static_cast<size_t>(p)];
      for (int64_t k = 0; k < in.h; ++k) {
        const double value = in.hidden[static_cast<size_t>(pair.m * in.h + k)];
        x.values[static_cast<size_t>(p * in.h + k)] = in.weight_on_input ? value * weight_of(pair) : value;
      }
    }
    w13.load(e);
    multiply(w13, x, count, sum_rounding, hidden);

    Numbers active(count * w2.k, follow), result(w2.n * count, follow);
    for (int64_t p = 0; p < count; ++p) {
      for (int64_t i = 0; i < w2.k; ++i) {
        const auto at = static_cast<size_t>(p * w2.k + i), first_at = static_cast<size_t>(i * count + p),
                   up_at = static_cast<size_t>((w2.k + i) * count + p);
        const double first = hidden.values[first_at], relu = std::max(first, 0.0);
        active.values[at] = gated ? activate(in, first, hidden.values[up_at]) : relu * relu;
        if (!follow) continue;
        double& squares = active.squares[at];
        if (gated) {
          const double up = hidden.values[up_at], silu = first / (1 + std::exp(-first));
          squares =
              squared(kSiluSlope * up) * hidden.squares[first_at] + squared(silu) * hidden.squares[up_at];
        } else {
          squares = squared(2 * relu) * hidden.squares[first_at];
        }
        squares += squared(rounding->active * active.values[at]);
      }
    }
    w2.load(e);
    multiply(w2, active, count, sum_rounding, result);
    for (int64_t p = 0; p < count; ++p) {
      const RoutedRow& pair = pairs[static_cast<size_t>(p)];
      const double weight = in.weight_on_input ? 1 : weight_of(pair);
      for (int64_t n = 0; n < in.h; ++n) {
        const auto to = static_cast<size_t>(pair.m * in.h + n), from = static_cast<size_t>(n * count + p);
        out.values[to] += weight * result.values[from];
        if (!follow) continue;
        out.squares[to] += squared(weight) * result.squares[from] +
                           squared(rounding->product * weight * result.values[from]);
        magnitudes[to] += std::abs(weight * result.values[from]);
      }
    }
  }
  for (size_t i = 0; i < magnitudes.size(); ++i)
    out.squares[i] += static_cast<double>(in.topk) * squared(sum_rounding * magnitudes[i]);
  return out;
}

}  // namespace

std::map<int64_t, std::vector<RoutedRow>> route_rows(std::span<const int32_t> topk_ids, int64_t topk,
                                                     int64_t experts, std::span<const int32_t> expert_map) {
  std::map<int64_t, std::vector<RoutedRow>> rows;
  const auto known = expert_map.empty() ? experts : static_cast<int64_t>(expert_map.size());
  for (int64_t i = 0; i < static_cast<int64_t>(topk_ids.size()); ++i) {
    int64_t e = topk_ids[static_cast<size_t>(i)];
    if (e < 0 || e >= known) {
      throw Error(fmt::format("topk_ids[{}, {}]: expected an expert from 0 to {}, found {}", i / topk,
                              i % topk, known - 1, e));
    }
    if (!expert_map.empty()) e = expert_map[static_cast<size_t>(e)];
    if (e == -1) continue;
    if (e < 0 || e >= experts)
      throw Error(fmt::format("expert_map: expected -1 to {}, found {}", experts - 1, e));
    rows[e].push_back({i / topk, i % topk});
  }
  return rows;
}

std::vector<double> moe_reference(const MoeInput& in, const WeightRows& w13, const WeightRows& w2) {
  return moe(in, w13, w2, nullptr).values;
}

MoeTolerance moe_tolerance(const MoeInput& in, const WeightRows& w13, const WeightRows& w2,
                           const MoeRounding& rounding) {
  Numbers out = moe(in, w13, w2, &rounding);
  for (double& square : out.squares) square = 8 * std::sqrt(square);
  return {std::move(out.values), std::move(out.squares)};
}

}  // namespace twofour
