#include "kernels/moe.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "formats/error.h"

namespace twofour {
namespace {

/// One token at one expert.
struct Pair {
  int64_t m;
  double weight;
};

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

/// Which tokens each expert serves, by local expert.
std::map<int64_t, std::vector<Pair>> route(const MoeInput& in, int64_t experts) {
  std::map<int64_t, std::vector<Pair>> pairs;
  const auto known = in.expert_map.empty() ? experts : static_cast<int64_t>(in.expert_map.size());
  for (int64_t i = 0; i < in.m * in.topk; ++i) {
    int64_t e = in.topk_ids[static_cast<size_t>(i)];
    if (e < 0 || e >= known) {
      throw Error(fmt::format("topk_ids[{}, {}]: expected an expert from 0 to {}, found {}", i / in.topk,
                              i % in.topk, known - 1, e));
    }
    if (!in.expert_map.empty()) e = in.expert_map[static_cast<size_t>(e)];
    if (e == -1) continue;
    if (e < 0 || e >= experts)
      throw Error(fmt::format("expert_map: expected -1 to {}, found {}", experts - 1, e));
    pairs[e].push_back({i / in.topk, static_cast<double>(in.topk_weights[static_cast<size_t>(i)])});
  }
  return pairs;
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
  for (const auto& [e, pairs] : route(in, w13.e)) {
    const auto count = static_cast<int64_t>(pairs.size());
    std::vector<double> x(static_cast<size_t>(count * in.h)), hidden(static_cast<size_t>(w13.n * count));
    for (int64_t p = 0; p < count; ++p) {
      const Pair& pair = pairs[static_cast<size_t>(p)];
      for (int64_t k = 0; k < in.h; ++k) {
        const double value = in.hidden[static_cast<size_t>(pair.m * in.h + k)];
        x[static_cast<size_t>(p * in.h + k)] = in.weight_on_input ? value * pair.weight : value;
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
      const Pair& pair = pairs[static_cast<size_t>(p)];
      const double weight = in.weight_on_input ? 1 : pair.weight;
      for (int64_t n = 0; n < in.h; ++n) {
        out[static_cast<size_t>(pair.m * in.h + n)] += weight * result[static_cast<size_t>(n * count + p)];
      }
    }
  }
  return out;
}

}  // namespace twofour
