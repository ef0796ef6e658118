#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <vector>

namespace twofour {

/// Weights [E, N, K] that are dequantized row by row, so that no whole expert is stored in double.
struct WeightRows {
  int64_t e, n, k;
  std::function<void(int64_t e)> load;  ///< called before the rows of an expert are read; may throw
  std::function<void(int64_t n, std::span<double>)> row;  ///< writes K values; called from several threads
};

/// Tokens and their experts.
struct MoeInput {
  int64_t m, h, topk;
  std::span<const float> hidden;          ///< [M, H]
  std::span<const int32_t> topk_ids;      ///< [M, topk]
  std::span<const float> topk_weights;    ///< [M, topk]
  std::span<const int32_t> expert_map{};  ///< [E'] global to local; -1 if not here; empty for identity
  bool weight_on_input = false;           ///< multiply hidden by the router's weight instead of the result
  double limit = 0;                       ///< gate is at most this, up between -this and this; no clamp if 0
};

/// The combination of one token and one of its experts.
struct RoutedRow {
  int64_t m, t;
};

/// Lists the rows of each local expert, in the order of `topk_ids` [M, topk]. `expert_map` is as in MoeInput.
/// Throws Error on an id outside of the map or of the experts.
std::map<int64_t, std::vector<RoutedRow>> route_rows(std::span<const int32_t> topk_ids, int64_t topk,
                                                     int64_t experts, std::span<const int32_t> expert_map);

/// Computes the MoE layer in double, with every sum in the order of K. This is the reference for all kernels.
///   out[m] = sum over t of weight[m,t] * w2[e] (silu(gate) * up)
///   with gate, up = w13[e] hidden[m] and e = ids[m,t]
/// w13 is [E, 2I, H], with gate rows before up rows, and w2 is [E, H, I]. If w13 is [E, I, H], there is no
/// gate and the activation is relu(up)^2, as in Nemotron-H. Returns [M, H]. Throws Error if shapes disagree
/// or an id is out of range.
std::vector<double> moe_reference(const MoeInput& input, const WeightRows& w13, const WeightRows& w2);

/// The rounding of a kernel: the largest error of each kind of step, relative to the rounded number.
struct MoeRounding {
  double sum;          ///< error of an addition, relative to the sum of all magnitudes
  double active;       ///< error of the input of the second multiplication
  double product = 0;  ///< error of a row's result, before the results of a token are added
};

/// The output of the layer in double, and the largest allowed difference from it. The difference is for the
/// numbers of a kernel with a MoeRounding, before they are rounded as output.
struct MoeTolerance {
  std::vector<double> out, tolerance;  ///< [M, H]
};

/// Roundings are assumed independent, and each is at most its bound b. By Hoeffding's inequality, the
/// probability that their sum exceeds 8 sqrt(sum of b^2), the tolerance, is 2 exp(-32) < 3e-14. A sum of K
/// products adds K roundings. Each is `rounding.sum` times the sum of the magnitudes of the products, which
/// no partial sum exceeds. The activation multiplies the roundings of gate and up by its slopes. Source:
/// Higham and Mary, A new approach to probabilistic rounding error analysis, 2019.
MoeTolerance moe_tolerance(const MoeInput& input, const WeightRows& w13, const WeightRows& w2,
                           const MoeRounding& rounding);

}  // namespace twofour
