#pragma once
#include <cstdint>
#include <span>

#include "kernels/device/isa.h"

/// The operations between the products of a decoder's layer, in float32 on the CPU. Results do not depend on
/// the number of threads.

namespace twofour::cpu {

/// Computes x / sqrt(mean of x^2 + epsilon) * weight for each row. Sums are in double. `x` and `out` are [m,
/// weight.size()] and may be the same memory.
void rms_norm(const float* x, int64_t m, std::span<const float> weight, double epsilon, float* out);

/// Rotary embedding, applied to some of the numbers of each head.
struct Rotary {
  std::span<const float> frequencies;  ///< [size / 2] angle of each pair at position 1
  float amplitude = 1;                 ///< factor of cosine and sine
  bool interleaved = false;            ///< pairs are neighbours; false: i and i + half of the rotated numbers
  bool backward = false;               ///< rotates back: sines are negated
  int64_t step = 1;                    ///< positions from one row to the next
};

/// Rotates numbers [offset, offset + 2 * frequencies) of each head of `x` [m, heads, head_size] in place.
/// Rows are `stride` floats apart, and row i is at position begin + i * step. Angles are float32 products, as
/// in the training of the models.
void rotate(const Rotary& rotary, float* x, int64_t m, int64_t stride, int64_t heads, int64_t head_size,
            int64_t offset, int64_t begin);

/// Causal attention of one sequence. The last query has the position of the last key.
struct Attention {
  int64_t queries, keys;
  int64_t heads, kv_heads;  ///< heads is a multiple of kv_heads
  int64_t head_size, value_size;
  const float* q;                ///< [queries, heads, head_size]
  const float* k;                ///< [keys, kv_heads, head_size]
  const float* v;                ///< [keys, kv_heads, value_size]
  std::span<const float> sinks;  ///< [heads] logits that take a share of the weights; empty if there are none
  float scale;                   ///< factor of the products of queries and keys
  int64_t window = 0;            ///< number of keys that a query sees, including its own; 0: all
};
/// Writes softmax(scale q k) v to `out` [queries, heads, value_size].
void attend(const Attention& in, float* out, Isa isa = best_isa());

}  // namespace twofour::cpu
