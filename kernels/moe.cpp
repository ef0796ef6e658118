#include "kernels/moe.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "formats/error.h"
#include "kernels/moe_route.h"

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

/// out[n][p] = w[n] . x[p] for all rows of one expert; x [pairs, K], out [N, pairs].
void multiply(const WeightRows& w, std::span<const double> x, int64_t pairs, std::span<double> out) {
#pragma omp parallel
  {
    std::vector<double> row(static_cast<size_t>(w.k));
#pragma omp for schedule(static)
    for (int64_t n = 0; n < w.n; ++n) {
      w.row(n, row);
      for (int64_t p = 0; p < pairs; ++p) {
        double sum = 0;
        for (int64_t k = 0; k < w.k; ++k)
          sum += row[static_cast<size_t>(k)] * x[static_cast<size_t>(p * w.k + k)];
        out[static_cast<size_t>(n * pairs + p)] = sum;
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

}  // namespace

std::vector<double> moe_reference(const MoeInput& in, const WeightRows& w13, const WeightRows& w2) {
  check(in, w13, w2);
  const bool gated = w13.n == 2 * w2.k;
  std::vector<double> out(static_cast<size_t>(in.m * in.h));
  const auto weight_of = [&](const RoutedRow& row) {
    return static_cast<double>(in.topk_weights[static_cast<size_t>(row.m * in.topk + row.t)]);
  };
  for (const auto& [e, pairs] : route_rows(in.topk_ids, in.topk, w13.e, in.expert_map)) {
    const auto count = static_cast<int64_t>(pairs.size());
    std::vector<double> x(static_cast<size_t>(count * in.h)), hidden(static_cast<size_t>(w13.n * count));
    for (int64_t p = 0; p < count; ++p) {
      const RoutedRow& pair = pairs[static_cast<size_t>(p)];
      for (int64_t k = 0; k < in.h; ++k) {
        const double value = in.hidden[static_cast<size_t>(pair.m * in.h + k)];
        x[static_cast<size_t>(p * in.h + k)] = in.weight_on_input ? value * weight_of(pair) : value;
      }
    }
    w13.load(e);
    multiply(w13, x, count, hidden);

    std::vector<double> active(static_cast<size_t>(count * w2.k)), result(static_cast<size_t>(w2.n * count));
    for (int64_t p = 0; p < count; ++p) {
      for (int64_t i = 0; i < w2.k; ++i) {
        const double first = hidden[static_cast<size_t>(i * count + p)];
        const double relu = std::max(first, 0.0);
        active[static_cast<size_t>(p * w2.k + i)] =
            gated ? activate(in, first, hidden[static_cast<size_t>((w2.k + i) * count + p)]) : relu * relu;
      }
    }
    w2.load(e);
    multiply(w2, active, count, result);
    for (int64_t p = 0; p < count; ++p) {
      const RoutedRow& pair = pairs[static_cast<size_t>(p)];
      const double weight = in.weight_on_input ? 1 : weight_of(pair);
      for (int64_t n = 0; n < in.h; ++n) {
        out[static_cast<size_t>(pair.m * in.h + n)] += weight * result[static_cast<size_t>(n * count + p)];
      }
    }
  }
  return out;
}

}  // namespace twofour
