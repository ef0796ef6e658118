#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "formats/layouts/layouts.h"
#include "kernels/device/device.h"
#include "kernels/moe/moe.h"
#include "kernels/moe/sparse_moe.h"

namespace twofour {

/// A feed-forward block that an artifact holds in a layout: routed experts, or a dense MLP as one expert.
struct LayerInfo {
  std::string name;    ///< prefix P of its tensors: "model.layers.0.mlp.experts"
  std::string layout;  ///< name of the layout: "v7"
  int64_t e = 0, h = 0, i = 0;
  bool gated = true;   ///< w13 is [E, 2I, H], rows gate then up; else [E, I, H] and relu(x)^2
  uint64_t bytes = 0;  ///< of its weights as they are stored, global scales included
};

/// Options of running a layer.
struct LayerOptions {
  std::vector<int32_t> expert_map{};  ///< [E'] global to local expert, -1: not here; empty: the identity
  bool weight_on_input = false;       ///< the router's weight multiplies hidden instead of the result
  float limit = 0;                    ///< gate is at most this, up between -this and this; 0: no clamp
  int cuda_device = -1;               ///< on CUDA, its index; -1: the current one
};

/// True if a number can be LayerOptions::limit: finite and not below 0 as a float. Other numbers that become
/// 0 as a float are refused, since 0 means no limit.
bool is_limit(double value);

/// The result of a run on host memory.
struct LayerRun {
  std::vector<float> out;  ///< [M, H]
  double seconds = 0;      ///< of the layer alone: on CUDA by events on the stream, copies not counted
};

/// The shapes of a layer's w13 and w2.
std::array<Shape, 2> layer_shapes(const LayerInfo& info);

/// The addresses of a matrix: the parts of its layout, and its global scales [E].
struct PlacedMatrix {
  const uint8_t* parts[kMostParts] = {};
  const float* global_scale = nullptr;
};

struct LayerState;

/// A layer on a device. On the CPU it computes from the mapped file, on CUDA from device memory; the weights
/// are held once. Shares ownership of the artifact's state.
///
/// If a mapped file is cut while the layer runs, the program ends with SIGBUS; forward() checks its size and
/// time first and throws Error if they changed. CUDA layers do not read the file once loaded.
class RuntimeLayer {
 public:
  RuntimeLayer(RuntimeLayer&&) noexcept;
  RuntimeLayer& operator=(RuntimeLayer&&) noexcept;
  ~RuntimeLayer();

  /// A layer over w13 and w2 that the caller holds in memory of the device, unchanged while the layer lives.
  /// Throws Error if the layout is unknown or does not take the sizes, and on stored bytes like
  /// RuntimeArtifact::load; on CUDA it copies them to the host in pieces to check them, on the default
  /// stream.
  static RuntimeLayer over(LayerInfo info, const std::array<PlacedMatrix, 2>& weights, Device device,
                           const LayerOptions& options);

  const LayerInfo& info() const;
  Device device() const;
  /// Bytes of device memory that the layer holds: weights, each part on a multiple of 256 bytes, and the
  /// expert map. 0 on the CPU.
  uint64_t device_bytes() const;

  /// Bytes of workspace that forward() needs for `m` tokens; 0 on the CPU.
  size_t workspace_bytes(int64_t m, int64_t topk) const;
  /// The most device memory that run() has allocated at a time beside the layer: workspace, tokens, output.
  uint64_t run_bytes(int64_t m, int64_t topk) const;

  /// True if forward() rounds `m` tokens, the values between the products and each row's result to BF16, of 8
  /// bits: on CUDA with many rows per expert.
  bool rounds_to_bf16(int64_t m, int64_t topk) const;

  /// Runs on memory of the layer's device: hidden and out [M, H] of `tokens.type`, topk_ids and topk_weights
  /// [M, topk], workspace on a multiple of 256 bytes, of one call at a time. On CUDA it runs on the caller's
  /// stream, which belongs to the layer's device, even if another is current. It allocates and synchronizes
  /// nothing, so it can be captured in a graph; ids out of range contribute nothing and set `tokens.error`.
  /// On the CPU the stream is not read, and ids out of range throw. Throws Error on shapes that a kernel does
  /// not take.
  void forward(const cuda::MoeTokens& tokens, void* workspace, size_t bytes,
               cuda::Stream stream = nullptr) const;

  /// Runs on host memory, numbers as float32: allocates, copies there and back, and waits. `input` brings
  /// hidden, ids and weights, [M, H] and [M, topk]; its expert_map, limit and weight_on_input must equal the
  /// layer's options, else Error is thrown. `type` is the type of hidden and out on the device. With
  /// `warm_up` the layer runs once unmeasured, and on CUDA its time is the median of nine runs. Throws Error
  /// on ids out of range.
  LayerRun run(const MoeInput& input, cuda::Float type = cuda::Float::f32, bool warm_up = false) const;

 private:
  friend class RuntimeArtifact;
  explicit RuntimeLayer(std::unique_ptr<LayerState> state);
  std::unique_ptr<LayerState> state_;
};

}  // namespace twofour
