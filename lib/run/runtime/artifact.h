#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/moe/router.h"
#include "lib/run/runtime/layer.h"

namespace twofour {

struct ArtifactState;

/// An artifact in a layout, open for running. Opening reads headers, index, config.json and
/// twofour.json, no weights.
class RuntimeArtifact {
 public:
  /// Throws Error if the path is no artifact in a layout, its tensors do not fit together or a count in its
  /// config.json is invalid.
  static RuntimeArtifact open(const std::filesystem::path& path);
  RuntimeArtifact(RuntimeArtifact&&) noexcept;
  RuntimeArtifact& operator=(RuntimeArtifact&&) noexcept;
  ~RuntimeArtifact();

  const std::filesystem::path& path() const;
  /// The layers in natural order of their names.
  std::span<const LayerInfo> layers() const;
  /// Positions in layers() that `name` means: the prefix, the prefix without its last part, or the layer's
  /// number ("3": all blocks of "model.layers.3"). Empty if it means none.
  std::vector<size_t> find(std::string_view name) const;

  /// Bytes of device memory that a layer takes on CUDA, known before it is loaded.
  uint64_t device_bytes(size_t layer, const LayerOptions& options = {}) const;
  /// Bytes of pinned host memory that load() uses for CUDA while it copies.
  static constexpr uint64_t kStagingBytes = uint64_t{32} << 20;

  /// Puts a layer on a device. Checks every stored byte once: throws Error on data that kernels must not
  /// read, metadata that is not two places in order and block scales that are NaN or negative. For CUDA the
  /// file is read in pieces into pinned buffers that are copied while the next is read; no second host copy
  /// exists. Throws Error if a file changes meanwhile.
  RuntimeLayer load(size_t layer, Device device, const LayerOptions& options = {}) const;

  /// Throws Error if the model computes more in this layer than products with its weights and silu (relu(x)^2
  /// without a gate): see why_not_run(). load() calls it, too.
  void check_layer(size_t layer) const;
  /// The clamp of gate and up that config.json names; 0: none.
  float swiglu_limit() const;
  /// Experts per token by config.json: 1 for a dense MLP, 0 if it does not state them. Throws Error on
  /// impossible values.
  int64_t experts_per_token(size_t layer) const;
  /// Runs the layer's router on the host: logits gate.weight hidden, summed up in float64, then `topk`
  /// experts and weights by the model's row of formats/families and config.json. `hidden` is [M, H]. A dense
  /// MLP has its one expert with weight 1. Throws Error if the layer has no `gate.weight` [E, H] of floats,
  /// tensors that its row does not have, or fewer experts in config.json; and on a model_type without a row,
  /// unless config.json has both scoring_func softmax and norm_topk_prob.
  ExpertChoice route(size_t layer, std::span<const float> hidden, int64_t m, int64_t topk) const;

 private:
  explicit RuntimeArtifact(std::shared_ptr<const ArtifactState> state);
  std::shared_ptr<const ArtifactState> state_;
};

}  // namespace twofour
