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

/// A feed-forward block that an artifact has in a layout. It has routed experts, or is a dense MLP, which
/// counts as one expert.
struct LayerInfo {
  std::string name;    ///< prefix of the names of its tensors, as "model.layers.0.mlp.experts"
  std::string layout;  ///< name of the layout, as "v7"
  int64_t e = 0, h = 0, i = 0;
  bool gated = true;   ///< if true, w13 is [E, 2I, H], rows of gate before rows of up; otherwise it is [E, I,
                       ///< H] and the activation is relu(x)^2
  uint64_t bytes = 0;  ///< size of its stored weights, global scales included
};

/// Options of running a layer.
struct LayerOptions {
  std::vector<int32_t> expert_map{};  ///< [E'] global to local; -1 if not here; empty for the identity
  bool weight_on_input = false;       ///< the router's weight multiplies hidden instead of the result
  float limit = 0;                    ///< gate is at most this, up between -this and this; no clamp if 0
  int cuda_device = -1;               ///< index on CUDA; -1 for the current device
};

/// True if a number can be LayerOptions::limit. As a float, it must be finite and not negative. Numbers other
/// than 0 that become 0 as a float are refused, since 0 means that there is no limit.
bool is_limit(double value);

/// The result of a run on host memory.
struct LayerRun {
  std::vector<float> out;  ///< [M, H]
  double seconds = 0;      ///< time of the layer without copies; on CUDA it is measured by events on the
                           ///< stream
};

/// The shapes of w13 and w2 of a layer.
std::array<Shape, 2> layer_shapes(const LayerInfo& info);

/// Addresses of the data of a matrix: the parts of its layout, and its global scales [E].
struct PlacedMatrix {
  const uint8_t* parts[kMostParts] = {};
  const float* global_scale = nullptr;
};

struct LayerState;

/// A layer on a device. On the CPU, it computes from the mapped file, on CUDA from device memory. The weights
/// are in memory once. The layer shares ownership of the artifact's state.
/// If a mapped file is cut while the layer runs, the program ends with SIGBUS. forward() checks the size and
/// time of the file first, and throws Error if they changed. CUDA layers do not read the file after loading.
class RuntimeLayer {
 public:
  RuntimeLayer(RuntimeLayer&&) noexcept;
  RuntimeLayer& operator=(RuntimeLayer&&) noexcept;
  ~RuntimeLayer();

  /// Makes a layer over w13 and w2 that the caller has in memory of the device. They must not change while
  /// the layer exists. Throws Error if the layout is unknown or does not support the sizes, and on stored
  /// bytes like RuntimeArtifact::load. To check bytes on CUDA, it copies them to the host in pieces on the
  /// default stream.
  static RuntimeLayer over(LayerInfo info, const std::array<PlacedMatrix, 2>& weights, Device device,
                           const LayerOptions& options);

  const LayerInfo& info() const;
  Device device() const;
  /// The bytes of device memory that the layer occupies. They hold the weights, whose parts are aligned to
  /// 256 bytes, and the expert map. 0 on the CPU.
  uint64_t device_bytes() const;

  /// The bytes of workspace that forward() needs for `m` tokens. 0 on the CPU.
  size_t workspace_bytes(int64_t m, int64_t topk) const;
  /// The most bytes of device memory that run() allocates beside the layer: workspace, tokens and output.
  uint64_t run_bytes(int64_t m, int64_t topk) const;

  /// True if forward() rounds `m` tokens, the values between the products, and the result of each row to
  /// BF16, which has 8 bits of precision. It does so on CUDA if each expert has many rows.
  bool rounds_to_bf16(int64_t m, int64_t topk) const;

  /// Runs the layer on memory of its device. In `tokens`, hidden and out are [M, H] of `tokens.type`,
  /// topk_ids and topk_weights are [M, topk]. `workspace` is aligned to 256 bytes and serves one call at a
  /// time. On CUDA, the layer runs on the caller's stream, which must belong to the layer's device. Another
  /// device may be current. It neither allocates nor synchronizes, so it can be captured in a graph. Ids out
  /// of range contribute nothing and set `tokens.error`. On the CPU, `stream` is not used, and ids out of
  /// range throw Error. Throws Error on shapes that no kernel supports.
  void forward(const cuda::MoeTokens& tokens, void* workspace, size_t bytes,
               cuda::Stream stream = nullptr) const;

  /// Runs the layer on host memory, with numbers as float32. It allocates, copies in both directions, and
  /// waits. `input` provides hidden [M, H], and ids and weights [M, topk]. Its expert_map, limit and
  /// weight_on_input must equal the layer's options; otherwise it throws Error. `type` is the type of hidden
  /// and out on the device. With `warm_up`, the layer first runs once without measurement. On CUDA, the time
  /// is then the median of nine runs. Throws Error on ids out of range.
  LayerRun run(const MoeInput& input, cuda::Float type = cuda::Float::f32, bool warm_up = false) const;

 private:
  friend class RuntimeArtifact;
  explicit RuntimeLayer(std::unique_ptr<LayerState> state);
  std::unique_ptr<LayerState> state_;
};

}  // namespace twofour
