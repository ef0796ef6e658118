#pragma once
#include <cstdint>
#include <span>

#include "kernels/device/isa.h"

/// The operations between the products of a decoder's layer, in float32 on the CPU. Results do not depend on
/// the number of threads.

namespace twofour::cpu {

/// x / sqrt(mean of x^2 + epsilon) * weight for each row, sums in double. `x` and `out` [m, weight.size()],
/// which may be the same.
void rms_norm(const float* x, int64_t m, std::span<const float> weight, double epsilon, float* out);

/// Rotary embedding of some numbers of each head.
struct Rotary {
  std::span<const float> frequencies;  ///< [size / 2]: the angle of a pair at position 1
  float amplitude = 1;                 ///< of cosine and sine
  bool interleaved = false;            ///< pairs are neighbours; else i and i + half of the rotated numbers
};

/// Rotates, in place, numbers [offset, offset + 2 * frequencies) of each head of `x` [m, heads, head_size],
/// rows `stride` floats apart; row i is at position begin + i. Angles are float32 products, as in the models'
/// training.
void rotate(const Rotary& rotary, float* x, int64_t m, int64_t stride, int64_t heads, int64_t head_size,
            int64_t offset, int64_t begin);

/// Causal attention of one sequence. The last query is at the position of the last key.
struct Attention {
  int64_t queries, keys;
  int64_t heads, kv_heads;  ///< heads is a multiple of kv_heads
  int64_t head_size, value_size;
  const float* q;                ///< [queries, heads, head_size]
  const float* k;                ///< [keys, kv_heads, head_size]
  const float* v;                ///< [keys, kv_heads, value_size]
  std::span<const float> sinks;  ///< [heads], logits that take a share of the weights; empty: none
  float scale;                   ///< of q k
  int64_t window = 0;            ///< keys that a query sees, its own among them; 0: all
};
/// softmax(scale q k) v, to `out` [queries, heads, value_size].
void attend(const Attention& in, float* out, Isa isa = best_isa());

}  // namespace twofour::cpu
