#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <vector>

namespace twofour {

/// Weights [E, N, K] that are dequantized a row at a time, so that no expert is held whole in double.
struct WeightRows {
  int64_t e, n, k;
  std::function<void(int64_t e)> load;                    ///< called before rows of an expert; may throw
  std::function<void(int64_t n, std::span<double>)> row;  ///< fills K values; called from several threads
};

/// Tokens and where the router sends them.
struct MoeInput {
  int64_t m, h, topk;
  std::span<const float> hidden;          ///< [M, H]
  std::span<const int32_t> topk_ids;      ///< [M, topk]
  std::span<const float> topk_weights;    ///< [M, topk]
  std::span<const int32_t> expert_map{};  ///< [E'] global to local expert, -1: not here; empty: the identity
  bool weight_on_input = false;           ///< multiply hidden by the router's weight instead of the result
  double limit = 0;                       ///< clamp of gate and up (product.md, "The MoE layer"); 0: none
};

/// One token at one of its experts.
struct RoutedRow {
  int64_t m, t;
};

/// Which rows each expert serves, by local expert; within one in the order of `topk_ids` [M, topk].
/// `expert_map` as in MoeInput. Throws Error on ids outside of the map or the experts.
std::map<int64_t, std::vector<RoutedRow>> route_rows(std::span<const int32_t> topk_ids, int64_t topk,
                                                     int64_t experts, std::span<const int32_t> expert_map);

/// The MoE layer in double, every sum in the order of K: the reference that all kernels are held against.
///   out[m] = sum over t of weight[m,t] * w2[e] (silu(gate) * up),  gate, up = w13[e] hidden[m],  e =
///   ids[m,t]
/// w13 is [E, 2I, H], rows gate then up, and w2 [E, H, I]. With w13 [E, I, H] (no gate) the activation is
/// relu(up)^2, as in Nemotron-H. Returns [M, H]. Throws Error where shapes disagree or an id is out of range.
std::vector<double> moe_reference(const MoeInput& input, const WeightRows& w13, const WeightRows& w2);

/// How a kernel rounds: largest errors of single steps, relative to what is rounded.
struct MoeRounding {
  double sum;          ///< an addition: to the sum of all magnitudes
  double active;       ///< what the second multiplication takes
  double product = 0;  ///< a row's result, before those of a token are added
};

/// The layer in double, and how far each number of a kernel that rounds so may differ from it before it is
/// rounded as output.
struct MoeTolerance {
  std::vector<double> out, tolerance;  ///< [M, H]
};

/// Roundings are taken as independent, each no larger than its bound b. By Hoeffding's inequality their sum
/// passes 8 sqrt(sum of b^2) with a probability of 2 exp(-32) < 3e-14, and that is the tolerance. A sum of K
/// products adds K roundings of `rounding.sum` times the sum of their magnitudes (which no partial sum
/// passes); the activation carries on those of gate and up by its slopes. Source: Higham and Mary, A new
/// approach to probabilistic rounding error analysis, 2019.
MoeTolerance moe_tolerance(const MoeInput& input, const WeightRows& w13, const WeightRows& w2,
                           const MoeRounding& rounding);

}  // namespace twofour
