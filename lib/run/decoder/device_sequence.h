#pragma once
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "lib/run/decoder/device_run.h"

namespace twofour {

/// One sequence on the device, with the caches of all layers. If all weights stay on the device, a token
/// after the first runs as one CUDA graph. The graph reads the token and its position from device memory.
class DeviceSequence {
 public:
  DeviceSequence(const DecoderState& state, DeviceRun& run);

  /// Makes room for `tokens` tokens in total.
  void reserve(int64_t tokens);
  /// Appends tokens to a sequence of `begin` tokens. Returns the logits after each of them if `all`,
  /// otherwise only after the last.
  std::vector<float> append(std::span<const int32_t> tokens, int64_t begin, bool all);
  /// Appends the most probable token `count` times to a sequence of `begin` tokens. Returns count + 1 rows:
  /// the figures of the logits before the first of these tokens, and after each of them.
  std::vector<cuda::LogitFigures> extend(int64_t begin, int64_t count);

 private:
  /// Buffers for one token.
  struct Buffers {
    cuda::DeviceMemory hidden, other_hidden, routed, normed, heads, low, latent, both, keys, values, mixed,
        attention, gates, out, added, gate_logit, ids, weights, one_id, one_weight, workspace, logits, choice,
        state, delta_mixed, delta_gates;
  };
  /// The caches of a layer. Layers that have none of a kind have no place for it.
  DevicePart caches_of(int64_t layer) const;
  void make_buffers();
  void upload_state(int32_t token, int64_t position);
  /// Puts the work for one token on the stream.
  void step();
  cuda::RowInput normed_input(const float* norm);
  void step_attention(int64_t layer, const DeviceLayer& w);
  void step_delta(int64_t layer, const DeviceLayer& w);
  void step_latent(const DeviceLayer& w, float*& q, float*& k, float*& v);
  void step_feed_forward(const DeviceLayer& w);
  void step_mlp(const DeviceLayer& w);
  void step_experts(const DeviceLayer& w);
  void step_block(const RuntimeLayer& block, int64_t top_k, const int32_t* ids, const float* weights);
  void replay();

  const DecoderState& state_;
  DeviceRun& run_;
  int64_t capacity_ = 0;
  std::vector<int64_t> place_;  ///< for each layer, the number of layers of its kind before it
  int64_t attention_layers_ = 0;
  cuda::DeviceMemory cache_, states_, history_;
  DeviceRoom hidden_, tokens_, logits_;
  Buffers b_;
  std::unique_ptr<cuda::DeviceGraph> graph_;
  bool is_warm_ = false;
  // Set while a step is put on the stream: the residual stream, and the values that are still to be added to
  // it.
  float *hidden_of_token_ = nullptr, *pending_ = nullptr;
};

}  // namespace twofour
