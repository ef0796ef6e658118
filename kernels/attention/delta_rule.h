#pragma once
#include <cstdint>
#include <span>

#include "kernels/device/isa.h"

/// Linear attention by the gated delta rule (Gated DeltaNet), in float32 on the CPU. For each token a layer
/// 1. sends its queries, keys and values through convolve(), and
/// 2. makes queries and keys unit vectors, normalize_lengths();
/// 3. takes from each value head how much of the state stays and how much a token writes, delta_gates();
/// 4. updates and reads the state, delta_rule(), and
/// 5. normalizes what was read and multiplies it by a gate, gated_norm().
/// Results do not depend on the number of threads. Source: transformers 5.17, modeling_qwen3_next.py.

namespace twofour::cpu {

/// A causal convolution of each channel by itself, after which comes silu. With inputs x of consecutive
/// tokens, out[i, c] = silu(bias[c] + sum over t of weight[c, t] * x[i - kernel + 1 + t, c]).
struct Convolution {
  int64_t m = 0, channels = 0, kernel = 0;
  const float* x = nullptr;       ///< [m, channels]
  const float* weight = nullptr;  ///< [channels, kernel]
  float* window = nullptr;  ///< [kernel - 1, channels] inputs of the tokens before; receives the last inputs
  const float* bias = nullptr;  ///< [channels]; nullptr: none
};
/// Writes `out` [m, channels], which is other memory than x.
void convolve(const Convolution& in, float* out, Isa isa = best_isa());

/// Computes x / sqrt(sum of x^2 + 1e-6) * factor for each head, in place. `x` is [m, heads, size], with rows
/// `stride` floats apart.
void normalize_lengths(float* x, int64_t m, int64_t stride, int64_t heads, int64_t size, float factor);

/// Gates of `m` tokens. With h = a_log.size() heads, all arrays are [m, h].
struct DeltaGates {
  const float *a = nullptr, *b = nullptr;
  std::span<const float> a_log, dt_bias;  ///< [h]
  float* decay = nullptr;                 ///< -exp(a_log) * softplus(a + dt_bias)
  float* beta = nullptr;                  ///< sigmoid(b)
};
void delta_gates(const DeltaGates& gates, int64_t m);

/// For each token, and for each value head with its state S [key_size, value_size], key k and query q of its
/// key head:
///   S = exp(decay) S;   S = S + k (beta (v - S' k))';   out = S' q
struct DeltaRule {
  int64_t m = 0;
  int64_t key_heads = 0, value_heads = 0;  ///< value_heads is a multiple of key_heads
  int64_t key_size = 0, value_size = 0;
  const float *q = nullptr, *k = nullptr;         ///< rows [key_heads, key_size]
  const float* v = nullptr;                       ///< rows [value_heads, value_size]
  int64_t stride = 0;                             ///< floats between rows of q, of k and of v
  const float *decay = nullptr, *beta = nullptr;  ///< [m, value_heads]
  float* state = nullptr;                         ///< [value_heads, key_size, value_size]
};
/// Writes `out` [m, value_heads, value_size]: a single token by the formulas, more of them by chunks.
void delta_rule(const DeltaRule& in, float* out, Isa isa = best_isa());
/// The formulas above, token by token.
void delta_rule_by_token(const DeltaRule& in, float* out);
/// The same by matrix products, kDeltaChunk tokens at a time. With D[i, j] = exp of the decays of tokens j +
/// 1 to i, and d[i] = exp of the decays of tokens 0 to i of a chunk, the values U that its tokens write solve
///   U[i] = beta[i] (v[i] - d[i] S' k[i] - sum over j < i of D[i, j] (k[i] k[j]) U[j]).
/// Then out[i] = d[i] S' q[i] + sum over j <= i of D[i, j] (q[i] k[j]) U[j], and the state after the chunk
/// is d[last] S + sum over j of D[last, j] k[j] U[j]'.
void delta_rule_by_chunk(const DeltaRule& in, float* out, Isa isa = best_isa());
inline constexpr int64_t kDeltaChunk = 64;

/// Computes x / sqrt(mean of x^2 + epsilon) * weight * silu(gate) for each of `m` rows. `x`, `gate` and `out`
/// are [m, weight.size()]; `out` is other memory.
void gated_norm(const float* x, const float* gate, int64_t m, std::span<const float> weight, double epsilon,
                float* out, Isa isa = best_isa());

}  // namespace twofour::cpu
