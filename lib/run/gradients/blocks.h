#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/attention/attention.h"
#include "kernels/moe/router.h"
#include "lib/source/model/model_shape.h"
#include "lib/source/model/weights.h"

/// Backward passes of the parts of a layer: the gradient of a part's input by the gradient of its output.
/// Numbers are float32. Sums over a row are in double. The number of threads does not change results.

namespace twofour {

/// dx [m, K] += dy [m, N] w, the gradient of the input of y = x w' + bias.
void add_input_gradient(const ModelWeights& weights, const ModelMatrix& w, const float* dy, int64_t m,
                        float* dx);

/// dx += the gradient of the input of cpu::rms_norm. `x`, `dy` and `dx` are [m, weight.size()].
void add_norm_gradient(const float* x, int64_t m, std::span<const float> weight, double epsilon,
                       const float* dy, float* dx);

/// The gradient of the weights of cpu::rms_norm, a sum over the m rows.
std::vector<double> norm_weight_gradient(const float* x, int64_t m, int64_t size, double epsilon,
                                         const float* dy);

/// The gradients of queries, keys and values, in the shapes of cpu::Attention.
struct AttentionGradients {
  float *q, *k, *v;
};
/// Computes the gradients for one of the kv heads and the heads that it serves. `in` has a key for each
/// query. `dy` [queries, heads, value_size] is the gradient of the output of cpu::attend. Sinks only take
/// weight. Writes the rows of `q`, and adds to those of `k` and `v`. Runs on the calling thread.
void add_attention_gradient(const cpu::Attention& in, int64_t kv_head, const float* dy,
                            const AttentionGradients& to);
/// Bytes of buffers that add_attention_gradient() needs for sequences of `tokens` tokens.
uint64_t attention_gradient_bytes(int64_t tokens, int64_t head_size, int64_t value_size);

/// Turns the gradient `d` of the gated activation of `gate` and `up` into the gradient of `gate`, and writes
/// that of `up` to `dup`. All have `count` numbers. A clamp passes gradients of numbers within its limits.
void gate_gradient(const GateShape& shape, const float* gate, const float* up, int64_t count, float* d,
                   float* dup);

/// The gradients of a router's logits [M, experts], from the gradients of the weights of the chosen experts
/// [M, top_k]. The choice itself has no gradient.
std::vector<float> router_gradient(const RouterRule& rule, std::span<const float> logits, int64_t experts,
                                   const ExpertChoice& chosen, std::span<const float> dweights);

}  // namespace twofour
