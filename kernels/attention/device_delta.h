#pragma once
#include <cstdint>

#include "formats/hd.h"
#include "kernels/device/stream.h"

/// Linear attention by the gated delta rule, on the device in float32. delta_rule.h defines it. Functions
/// only put work on the caller's stream, and do not wait. They throw Error with CUDA's message.

namespace twofour::cuda {

/// The places of a token's numbers in the row of its projections. By key head, the row is
///   qkvz: for each key head its query, its key, the values of its value heads and their gates z
///   ba:   for each key head the b of its value heads, and their a.
/// Otherwise it is queries, keys, values, z, b and a, each of all heads.
struct DeltaColumns {
  int key_heads = 0, value_heads = 0, key_size = 0, value_size = 0;
  bool by_key_head = false;

  TWOFOUR_HD int keys() const { return key_heads * key_size; }
  TWOFOUR_HD int values() const { return value_heads * value_size; }
  TWOFOUR_HD int channels() const { return 2 * keys() + values(); }
  TWOFOUR_HD int count() const { return channels() + values() + 2 * value_heads; }
  TWOFOUR_HD int group() const { return value_heads / key_heads; }

  /// Number `i` of the queries, keys and values of all heads.
  TWOFOUR_HD int channel(int i) const {
    if (!by_key_head) return i;
    if (i < keys()) return block(i / key_size) + i % key_size;
    i -= keys();
    if (i < keys()) return block(i / key_size) + key_size + i % key_size;
    i -= keys();
    return block(i / group_values()) + 2 * key_size + i % group_values();
  }
  TWOFOUR_HD int z(int i) const {
    if (!by_key_head) return channels() + i;
    return block(i / group_values()) + 2 * key_size + group_values() + i % group_values();
  }
  TWOFOUR_HD int b(int head) const {
    const int first = channels() + values();
    return by_key_head ? first + head / group() * 2 * group() + head % group() : first + head;
  }
  TWOFOUR_HD int a(int head) const { return b(head) + (by_key_head ? group() : value_heads); }

 private:
  TWOFOUR_HD int group_values() const { return group() * value_size; }
  TWOFOUR_HD int block(int key_head) const { return key_head * 2 * (key_size + group_values()); }
};

/// The largest size of a key head.
inline constexpr int kMostKeySize = 256;

/// Consecutive tokens of one sequence.
struct DeltaTokens {
  DeltaColumns columns;
  int kernel = 1;
  int64_t m = 0;
  const float* x = nullptr;                          ///< the projections, rows of columns.count() numbers
  const float* convolution = nullptr;                ///< [channels, kernel]
  const float *a_log = nullptr, *dt_bias = nullptr;  ///< [value_heads]
  const float* norm = nullptr;                       ///< [value_size]
  float epsilon = 0;
  float* window = nullptr;  ///< [kernel, channels]: inputs of the token at position p are in row p % kernel
  float* state = nullptr;   ///< [value_heads, key_size, value_size]
  float* mixed = nullptr;   ///< [m, channels] memory for what comes out of the convolution
  float* gates = nullptr;   ///< [m, 2, value_heads] memory for exp(decay) and beta
  float* out = nullptr;     ///< [m, value_heads, value_size], the input of the output's projection
  int64_t begin = 0;        ///< position of the first token; at 0, window and state are not read
  const int32_t* position = nullptr;  ///< position of a single token in device memory, in place of `begin`
};
/// Runs the tokens one after the other. Columns of a state are independent of each other, so each warp has
/// eight of a head in its registers for all tokens.
void run_delta(const DeltaTokens& tokens, Stream stream);

}  // namespace twofour::cuda
