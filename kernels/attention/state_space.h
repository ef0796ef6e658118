#pragma once
#include <cstdint>
#include <limits>
#include <span>

#include "kernels/device/isa.h"

/// Mamba-2, a state space by scalar decays (SSD), in float32 on the CPU. For each token a layer
/// 1. sends x, B and C through convolve() of delta_rule.h, whose convolution may have a bias;
/// 2. takes the time step of each head, time_steps();
/// 3. updates and reads the state of each head, scan_states(), and
/// 4. multiplies what was read by a gate and normalizes it in groups, gate_and_norm().
/// Results do not depend on the number of threads. Source: transformers 5.17, modeling_nemotron_h.py;
/// Dao and Gu, Transformers are SSMs (arXiv 2405.21060), section 6.

namespace twofour::cpu {

/// Computes softplus(x + bias), clamped to [least, most], for `m` tokens in place. `x` is [m, bias.size()].
void time_steps(float* x, int64_t m, std::span<const float> bias, float least = 0,
                float most = std::numeric_limits<float>::infinity());

/// For each token, and for each head with its state S [state_size, head_size], its step t, and the B and C of
/// its group of heads:
///   S = exp(-exp(a_log) t) S + B (t x)';   out = S' C + d x
struct StateScan {
  int64_t m = 0;
  int64_t heads = 0, groups = 0;  ///< heads is a multiple of groups
  int64_t head_size = 0, state_size = 0;
  const float* x = nullptr;                   ///< rows [heads, head_size]
  const float *b = nullptr, *c = nullptr;     ///< rows [groups, state_size]
  int64_t stride = 0;                         ///< floats between rows of x, of b and of c
  const float* steps = nullptr;               ///< [m, heads]
  std::span<const float> a_log = {}, d = {};  ///< [heads]
  float* state = nullptr;                     ///< [heads, state_size, head_size]
};
/// Writes `out` [m, heads, head_size]: a single token by the formulas, more of them by chunks.
void scan_states(const StateScan& in, float* out, Isa isa = best_isa());
/// The formulas above, token by token.
void scan_states_by_token(const StateScan& in, float* out);
/// The same by matrix products, kScanChunk tokens at a time. With D[i, j] = exp of the decays of tokens j + 1
/// to i, and e[i] = exp of the decays of tokens 0 to i of a chunk,
///   out[i] = e[i] S' C[i] + sum over j <= i of D[i, j] (C[i] B[j]) t[j] x[j] + d x[i],
/// and the state after the chunk is e[last] S + sum over j of D[last, j] B[j] (t[j] x[j])'.
void scan_states_by_chunk(const StateScan& in, float* out, Isa isa = best_isa());
inline constexpr int64_t kScanChunk = 64;

/// Computes y = x * silu(gate), and y / sqrt(mean of y^2 + epsilon) * weight with one mean for each of
/// `groups` equal parts of a row, for each of `m` rows. `x`, `gate` and `out` are [m, weight.size()]; `out`
/// is other memory.
void gate_and_norm(const float* x, const float* gate, int64_t m, int64_t groups,
                   std::span<const float> weight, double epsilon, float* out, Isa isa = best_isa());

}  // namespace twofour::cpu
