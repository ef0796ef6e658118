#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/attention/device_attention.h"
#include "kernels/attention/device_compressed.h"
#include "kernels/attention/device_delta.h"
#include "kernels/attention/device_streams.h"
#include "kernels/device/device_memory.h"
#include "kernels/floats/device_gemm.h"
#include "kernels/floats/device_vectors.h"
#include "kernels/moe/device_router.h"
#include "lib/run/device_blocks/device_weights.h"

namespace twofour {

/// Device memory that grows to the requested size.
class DeviceRoom {
 public:
  /// Memory for `count` values, which are not initialized.
  template <class T>
  T* of(int64_t count) {
    const auto bytes = static_cast<size_t>(count) * sizeof(T);
    if (memory_.bytes() < bytes) {
      memory_ = {};
      memory_ = cuda::DeviceMemory(bytes);
    }
    return memory_.as<T>();
  }
  /// The memory of the last request.
  template <class T>
  const T* last() const {
    return memory_.as<T>();
  }

 private:
  cuda::DeviceMemory memory_;
};

/// Consecutive tokens of one sequence in a batch on the device.
struct DevicePart {
  int64_t count = 0, begin = 0;
  /// Caches of the layer that runs, as it has attention, linear attention, or attention to compressed
  /// entries; nullptr if there are none. `window` is of the latter two.
  float *keys = nullptr, *values = nullptr;
  float *window = nullptr, *recurrent = nullptr;
  float *entries = nullptr, *index_keys = nullptr, *compressor = nullptr;
};

/// The places of a token's projections in a row, in a layer with attention to compressed entries. A
/// compressor has its values, then its gates.
struct CompressedRow {
  CompressedRow(const ModelShape& shape, int64_t layer);
  int64_t q_a = 0, kv = 0, entries = 0, index = 0, index_weights = 0;
  int64_t count = 0;       ///< floats of a row
  int64_t compressor = 0;  ///< floats from `entries` on that compressors read
  int64_t kept = 0;        ///< compressors need these for so many last tokens
};

/// Tokens of a sequence in a layer with attention to compressed entries.
struct CompressedTokens {
  cuda::TokenSpan span;
  float* projected = nullptr;  ///< [m, CompressedRow::count]
  DevicePart caches;
  int64_t most = 0;  ///< number of tokens of the sequence at most
};
/// Some of these tokens, with their queries.
struct CompressedQueries {
  int64_t first = 0, count = 0;
  float *q = nullptr, *index_q = nullptr;  ///< [count, heads, head_size], [count, index_heads, index_size]
  float* scores = nullptr;                 ///< [count, entries] memory, if there are more than are chosen
  int32_t* chosen = nullptr;               ///< [count, chosen] memory in this case
  float* out = nullptr;                    ///< [groups, count, heads / groups, head_size]
};

/// Runs layers of a model on the current CUDA device, like lib/run/decoder on the CPU. Values between
/// products are float32. It implements Decoder. Only one thread at a time may use it.
class DeviceRun {
 public:
  DeviceRun(const DecoderState& state, uint64_t memory) : state_(state), weights_(state, memory) {}

  DeviceWeights& weights() { return weights_; }
  const cuda::DeviceStream& stream() const { return stream_; }

  /// These are like Decoder's functions, on host memory.
  void run_half(int64_t layer, LayerHalf half, std::span<const SequencePart> batch, std::span<float> hidden,
                const HalfRun& run);
  void run_head(std::span<const float> hidden, std::span<float> logits);
  /// Like run_half(), on `hidden` in device memory. Waits for the device.
  void run_half_in_place(int64_t layer, LayerHalf half, std::span<const SequencePart> batch, float* hidden,
                         const HalfRun& run);

  /// The figures for `tokens` of the logits after `hidden` [rows, H]. They include the distance from the
  /// logits that `other` scored last, which must have the same number of rows.
  std::vector<cuda::LogitFigures> score(std::span<const float> hidden, std::span<const int32_t> tokens,
                                        const DeviceRun* other);

  /// Runs both halves of a layer on `hidden` [m, R] in device memory, in place. R is ModelShape::residual().
  /// `tokens` [m] are the ids.
  void run_layer(int64_t layer, std::span<const DevicePart> parts, const int32_t* tokens, float* hidden,
                 int64_t m);
  /// Reads rows of the embedding for `tokens` [m] into `hidden` [m, R].
  void embed(const int32_t* tokens, int64_t m, float* hidden);
  /// Computes logits [m, vocabulary] of `hidden` [m, R]. The last norm of `hidden` is computed in other
  /// memory.
  void run_head(const float* hidden, int64_t m, float* logits);
  /// Waits for the device. Throws Error if a router met logits that are not finite.
  void check_routers();

  /// Settings of a layer, which DeviceSequence uses as well.
  cuda::RouterRule router_rule(const DeviceLayer& layer, const int32_t* tokens) const;
  cuda::GateUnits gate_units() const;
  cuda::HeadRows head_rows(int64_t layer, const DeviceLayer& weights, bool are_keys) const;
  cuda::StreamMixer stream_mixer(const DeviceStreams& weights, bool is_head = false) const;
  /// The steps of attention to compressed entries. prepare_compressed() turns the tokens' vectors and makes
  /// entries. attend_compressed() turns queries, chooses entries and attends; it takes any of the tokens.
  /// keep_compressed() keeps what later tokens need.
  void prepare_compressed(int64_t layer, const DeviceLayer& weights, const CompressedTokens& tokens) const;
  void attend_compressed(int64_t layer, const DeviceLayer& weights, const CompressedTokens& tokens,
                         const CompressedQueries& queries) const;
  void keep_compressed(int64_t layer, const CompressedTokens& tokens) const;
  /// Number of entries that a token of a sequence of `tokens` tokens may see; 0 if no index chooses among
  /// them.
  int64_t scored_entries(int64_t layer, int64_t tokens) const;
  /// Linear attention without tokens.
  cuda::DeltaTokens delta_tokens(const DeviceLayer& layer) const;
  int32_t* router_error() { return error_.as<int32_t>(); }

 private:
  /// True if a run of a half must show values that its layout hides.
  bool hides_inputs(int64_t layer, LayerHalf half, const HalfRun& run);
  /// Half a layer on `hidden` [m, R] in device memory.
  void run_half(int64_t layer, LayerHalf half, std::span<const DevicePart> parts, const int32_t* tokens,
                float* hidden, int64_t m, const HalfRun& run);
  /// The rows [m, H] that half a layer reads, and those to which it adds its output. Both may be the same
  /// memory.
  struct Rows {
    const float* in;
    float* out;
    int64_t m;
  };
  void run_attention(int64_t layer, std::span<const DevicePart> parts, const Rows& rows, const HalfRun& run);
  void run_delta(int64_t layer, std::span<const DevicePart> parts, const Rows& rows, const HalfRun& run);
  void run_compressed(int64_t layer, std::span<const DevicePart> parts, const Rows& rows, const HalfRun& run);
  void run_feed_forward(int64_t layer, const int32_t* tokens, const Rows& rows, const HalfRun& run);
  /// The input [m, H] of the last norm. It is `hidden` itself if there is one residual stream.
  const float* read_head_stream(const float* hidden, int64_t m);
  /// Queries, keys and values before rotation. project_plain() and project_latent() return false if the run
  /// ends before these are complete.
  struct Heads {
    float *q = nullptr, *k = nullptr, *v = nullptr;
    int64_t q_stride = 0, k_stride = 0, v_stride = 0;
  };
  bool project_plain(const DeviceLayer& w, float* x, int64_t m, Heads& heads);
  bool project_latent(const DeviceLayer& w, const AttentionWeights& groups, float* x, int64_t m,
                      const HalfRun& run, Heads& heads);
  void run_mlp(const DeviceLayer& w, const FeedForwardWeights& f, float* x, float* hidden, int64_t m,
               const HalfRun& run);
  void run_experts(const DeviceLayer& w, const FeedForwardWeights& f, const int32_t* tokens, float* x,
                   float* hidden, int64_t m, const HalfRun& run);
  void run_each_expert(const DeviceLayer& w, const FeedForwardWeights& f, const ExpertChoice& chosen,
                       float* x, float* hidden, int64_t m, const HalfRun& run);
  void run_block(const RuntimeLayer& block, const float* x, int64_t m, int64_t top_k, const int32_t* ids,
                 const float* weights, float* out);
  /// Shows the input of a group, rows [m, k], to the watcher.
  void see(const HalfRun& run, size_t group, const float* x, int64_t m, int64_t k,
           std::span<const int64_t> tokens = {});
  template <class T>
  std::vector<T> download(const T* from, int64_t count) const {
    std::vector<T> values(static_cast<size_t>(count));
    cuda::copy_to_host(from, values.data(), values.size() * sizeof(T), stream_);
    return values;
  }

  const DecoderState& state_;
  DeviceWeights weights_;
  cuda::DeviceStream stream_;
  cuda::MatrixProducts products_;
  cuda::DeviceMemory error_{std::vector<int32_t>{0}};
  DeviceRoom hidden_, normed_, heads_, queries_, keys_, values_, mixed_, low_, latent_, both_;
  DeviceRoom gates_, active_, added_, logits_, ids_, routed_, workspace_, expert_x_, expert_out_, rows_,
      row_weights_, norms_, tokens_, figures_;
  DeviceRoom read_, mix_, sums_, half_out_, entries_, index_keys_, index_q_, scores_, chosen_;
};

}  // namespace twofour
