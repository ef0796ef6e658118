#pragma once
#include <cstdint>
#include <span>
#include <vector>

/// Several residual streams in place of one (manifold-constrained hyper-connections, DeepSeek-V4), in float32
/// on the CPU. Half a layer
/// 1. takes mixing weights from all streams of a token, mix_streams();
/// 2. reads its input as a weighted sum of the streams, read_streams(); and
/// 3. mixes the streams with each other and adds its output to each of them, write_streams().
/// Source: DeepSeek's inference/model.py; transformers 5.17, DeepseekV4HyperConnection.

namespace twofour::cpu {

struct StreamMixer {
  int64_t streams = 0, hidden = 0;
  std::span<const float> weight;  ///< [rows, streams * hidden]
  std::span<const float> base;    ///< [rows]
  std::span<const float> scale;   ///< [3]; [1] for the head
  int64_t iterations = 0;         ///< steps of Sinkhorn's normalization of rows and columns
  double epsilon = 0;             ///< added to weights and to sums that divide
  double norm_epsilon = 0;        ///< epsilon of the norm of all streams
};

/// Mixing weights of `m` tokens.
struct StreamMix {
  std::vector<float> read;   ///< [m, streams]
  std::vector<float> write;  ///< [m, streams]
  std::vector<float> mix;    ///< [m, streams, streams]; stream j counts in stream k with mix[j, k]
};
/// Computes the weights of half a layer from `x` [m, streams, hidden]. The mixer has 2 * streams + streams^2
/// rows. Rows and columns of a token's mix sum to about 1.
StreamMix mix_streams(const StreamMixer& mixer, const float* x, int64_t m);
/// Computes the weights [m, streams] by which the head reads the streams. The mixer has `streams` rows.
std::vector<float> mix_for_head(const StreamMixer& mixer, const float* x, int64_t m);

/// Writes the sum over streams j of read[j] x[j] to `out` [m, hidden].
void read_streams(std::span<const float> read, const float* x, int64_t streams, int64_t hidden, float* out);
/// Sets each stream k of `x` [m, streams, hidden] to write[k] y + sum over j of mix[j, k] x[j]. `y` is [m,
/// hidden].
void write_streams(const StreamMix& mix, const float* y, int64_t streams, int64_t hidden, float* x);

}  // namespace twofour::cpu
