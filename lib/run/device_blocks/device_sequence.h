#pragma once
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "formats/atom.h"
#include "lib/run/device_blocks/device_run.h"

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
        state, delta_mixed, delta_gates, read, mix, sums, half_out, queries, chosen;
  };
  /// An array of a layer's caches that grows with the sequence: `width` floats for every `ratio` tokens.
  struct Cache {
    int64_t layer = 0, ratio = 1, width = 0;
    int64_t floats(int64_t tokens) const { return ceil_div(tokens, ratio) * width; }
  };
  /// The caches of a layer. Layers that have none of a kind have no place for it.
  DevicePart caches_of(int64_t layer) const;
  /// Floats of a layer's state that does not grow with the sequence.
  int64_t state_floats(int64_t layer) const;
  void make_buffers();
  void upload_state(int32_t token, int64_t position);
  /// Puts the work for one token on the stream.
  void step();
  void step_half(int64_t layer, const DeviceLayer& w, LayerHalf half);
  /// The row that a half reads, without a norm and with it.
  float* input() const { return half_in_ != nullptr ? half_in_ : hidden_of_token_; }
  cuda::RowInput normed_input(const float* norm);
  /// Where a product of a half writes its output.
  cuda::RowOutput output();
  /// The memory to which a half adds its output.
  float* sum();
  void step_attention(int64_t layer, const DeviceLayer& w);
  void step_compressed(int64_t layer, const DeviceLayer& w);
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
  std::vector<Cache> caches_;  ///< layer after layer
  cuda::DeviceMemory cache_, states_, history_;
  DeviceRoom hidden_, tokens_, logits_, scores_;
  Buffers b_;
  std::unique_ptr<cuda::DeviceGraph> graph_;
  bool is_warm_ = false;
  // Set while a step is put on the stream: the residual stream, and the values that are still to be added to
  // it.
  float *hidden_of_token_ = nullptr, *pending_ = nullptr;
  // Set while a half runs whose input is read from several streams, or whose output has a norm after it.
  float *half_in_ = nullptr, *half_out_ = nullptr;
  bool is_half_out_empty_ = false;
};

}  // namespace twofour
