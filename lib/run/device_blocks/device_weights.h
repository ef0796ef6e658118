#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "kernels/device/device_memory.h"
#include "kernels/floats/device_matrix.h"
#include "lib/run/blocks/state.h"
#include "lib/run/device_blocks/device_placer.h"
#include "lib/run/runtime/artifact.h"

namespace twofour {

/// Gate, up and down of an MLP in device memory, or a runtime layer in their place.
struct DeviceMlp {
  cuda::DeviceMatrix gate, up, down;
  std::shared_ptr<const RuntimeLayer> block;
  explicit operator bool() const { return block != nullptr || gate.n > 0; }
};

/// The routed experts of a layer: the matrices of each, or a runtime layer in their place.
struct DeviceExperts {
  std::vector<DeviceMlp> each;
  cuda::ExpertMatrices gate_up, down;  ///< the same matrices in the form for products of single rows
  std::shared_ptr<const RuntimeLayer> block;
  explicit operator bool() const { return block != nullptr || !each.empty(); }
};

/// The weights of linear attention in device memory.
struct DeviceDelta {
  std::vector<cuda::DeviceMatrix> in;  ///< qkvz and ba, or qkv, z, b and a, in the order of DeltaColumns
  cuda::DeviceMatrix out;
  const float *convolution = nullptr, *a_log = nullptr, *dt_bias = nullptr, *norm = nullptr;
  explicit operator bool() const { return !in.empty(); }
};

/// A bias and a norm of a compressor, whose projections are in DeviceCompressed::in.
struct DeviceCompressor {
  const float *bias = nullptr, *norm = nullptr;
};

/// The weights of attention to compressed entries, beside q_a_norm, q_b, sinks and `o` of the layer.
struct DeviceCompressed {
  std::vector<cuda::DeviceMatrix> in;   ///< the projections of the input, in the order of CompressedRow
  std::vector<cuda::DeviceMatrix> o_a;  ///< the first projection of outputs, for each group of heads
  cuda::ExpertMatrices groups;          ///< the same matrices in the form for products of single rows
  const int32_t* group_ids = nullptr;   ///< [groups] 0, 1 and so on
  cuda::DeviceMatrix index_q;
  const float* kv_norm = nullptr;
  DeviceCompressor entries, index;
  explicit operator bool() const { return !in.empty(); }
};

/// The weights that mix residual streams.
struct DeviceStreams {
  const float *weight = nullptr, *base = nullptr, *scale = nullptr;
};

/// The weights of a layer in device memory. A vector that the model lacks is nullptr.
struct DeviceLayer {
  cuda::DeviceMatrix q, k, v, o, q_a, q_b, kv_a, kv_b;
  const float *attention_norm = nullptr, *q_norm = nullptr, *k_norm = nullptr, *q_a_norm = nullptr,
              *kv_a_norm = nullptr, *sinks = nullptr;
  const float *feed_forward_norm = nullptr, *correction = nullptr;
  const float *norm_behind_attention = nullptr, *norm_behind_feed_forward = nullptr;
  const int32_t* table = nullptr;  ///< [vocabulary, top_k] the experts of each token
  DeviceStreams attention_streams, feed_forward_streams;
  DeviceDelta delta;            ///< instead of attention
  DeviceCompressed compressed;  ///< instead of attention
  DeviceMlp mlp;                ///< the dense MLP or the shared expert
  cuda::DeviceMatrix router, shared_gate;
  DeviceExperts experts;
};

/// The weights that do not belong to a layer. The factor of the embedding's rows is in its global scale.
struct DeviceEnds {
  cuda::DeviceMatrix embedding, head;
  const float* norm = nullptr;
  /// For layers without a window, with one, and with compressed entries.
  const float *frequencies = nullptr, *window_frequencies = nullptr, *compressed_frequencies = nullptr;
  DeviceStreams streams;  ///< streams that the head reads
};

/// The weights of a model on the current CUDA device, as its directory stores them. The device has all of
/// them, or if they do not fit two layers at a time. INT4 becomes float32, and so does FP8 whose blocks do
/// not match the rows.
class DeviceWeights {
 public:
  /// `state` must outlive this object. `memory` is the limit in bytes for weights on the device at the same
  /// time; 0 means its free memory minus a reserve. Throws Error if one layer does not fit.
  DeviceWeights(const DecoderState& state, uint64_t memory);

  /// True if all weights stay on the device.
  bool is_resident() const { return is_resident_; }
  const DeviceEnds& ends() const { return ends_; }
  /// Returns a layer, and loads it if it is not on the device. If layers do not stay on the device, the
  /// result is valid until two other layers are requested.
  const DeviceLayer& layer(int64_t layer);
  /// Notes that all work that reads a layer is on the stream. The layer that replaces it waits for that work.
  void leave(int64_t layer, const cuda::DeviceStream& stream);
  /// Bytes of all weights.
  uint64_t bytes() const { return ends_memory_.bytes() + layer_bytes_; }
  /// Bytes of the weights that are read for one token, which include its experts and the head, and not the
  /// queries of an index, which short texts do not need.
  uint64_t bytes_of_token() const { return token_bytes_; }
  /// Drops all layers, since the weights of the model have changed. Each is loaded again when it is used.
  void forget();

 private:
  struct Placed {
    int64_t layer = -1;
    cuda::DeviceMemory memory;
    DeviceLayer weights;
    cuda::DeviceEvent used;
  };
  Placed& place_of(int64_t layer) { return *placed_[is_resident_ ? at(layer) : at(layer) % placed_.size()]; }
  void place_ends(DevicePlacer& placer);
  void place_layer(DevicePlacer& placer, int64_t layer, DeviceLayer& to) const;
  void place_delta(DevicePlacer& placer, const DeltaWeights& w, DeviceDelta& to) const;
  void place_compressed(DevicePlacer& placer, const LayerWeights& w, DeviceCompressed& to) const;
  /// Places the experts of each token. Throws Error on numbers that no expert has.
  const int32_t* place_table(DevicePlacer& placer, size_t tensor) const;
  void place_mlp(DevicePlacer& placer, const MlpWeights& w, DeviceMlp& to) const;
  void place_experts(DevicePlacer& placer, int64_t layer, DeviceExperts& to) const;
  std::optional<size_t> find_block(const std::string& name, int64_t experts, int64_t width) const;
  std::shared_ptr<const RuntimeLayer> place_block(DevicePlacer& placer, size_t index) const;

  const DecoderState& state_;
  std::optional<RuntimeArtifact> artifact_;  ///< set if the model has layers in a layout
  bool is_resident_ = false, is_changed_ = false;
  uint64_t layer_bytes_ = 0, token_bytes_ = 0;
  cuda::DeviceMemory ends_memory_;
  DeviceEnds ends_;
  std::vector<std::unique_ptr<Placed>> placed_;  ///< one for each layer, or one or two in total
};

}  // namespace twofour
