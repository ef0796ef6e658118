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

/// An artifact in a layout that is open for running. Opening reads headers, the index, config.json and
/// twofour.json, but no weights.
class RuntimeArtifact {
 public:
  /// Throws Error if the path does not lead to an artifact in a layout, if its tensors do not fit together,
  /// or if a count in its config.json is invalid.
  static RuntimeArtifact open(const std::filesystem::path& path);
  RuntimeArtifact(RuntimeArtifact&&) noexcept;
  RuntimeArtifact& operator=(RuntimeArtifact&&) noexcept;
  ~RuntimeArtifact();

  const std::filesystem::path& path() const;
  /// The layers, in natural order of their names.
  std::span<const LayerInfo> layers() const;
  /// Indices in layers() of the layers that `name` stands for. `name` is the prefix of a layer, the prefix
  /// without its last part, or the layer's number. "3" stands for all blocks of "model.layers.3". Empty if
  /// there is no such layer.
  std::vector<size_t> find(std::string_view name) const;

  /// The bytes of device memory that a layer needs on CUDA. They are known before it is loaded.
  uint64_t device_bytes(size_t layer, const LayerOptions& options = {}) const;
  /// The bytes of pinned host memory that load() needs for CUDA while it copies.
  static constexpr uint64_t kStagingBytes = uint64_t{32} << 20;

  /// Puts a layer on a device. Checks every stored byte once. Throws Error on data that kernels must not
  /// read: metadata that is not two ascending positions, and block scales that are NaN or negative. For CUDA,
  /// the file is read in pieces into pinned buffers. One piece is copied while the next is read. There is no
  /// second copy on the host. Throws Error if a file changes during the call.
  RuntimeLayer load(size_t layer, Device device, const LayerOptions& options = {}) const;

  /// Throws Error if the model computes more in this layer than products with its weights and silu, or
  /// relu(x)^2 if there is no gate. See why_not_run(). load() calls this function, too.
  void check_layer(size_t layer) const;
  /// The limit in config.json to which gate and up are clamped. 0 if there is none.
  float swiglu_limit() const;
  /// The experts per token according to config.json. 1 for a dense MLP, and 0 if config.json has no such
  /// number. Throws Error on impossible values.
  int64_t experts_per_token(size_t layer) const;
  /// Runs the layer's router on the host. The logits are gate.weight hidden, summed in float64. Then `topk`
  /// experts and their weights follow from config.json and the model's row in formats/families. `hidden` is
  /// [M, H]. A dense MLP has a single expert with weight 1. Throws Error if the layer has no `gate.weight`
  /// [E, H] of floats, has tensors that the row does not have, or has more experts than config.json. Throws
  /// Error on a model_type without a row, unless config.json has both scoring_func softmax and
  /// norm_topk_prob.
  ExpertChoice route(size_t layer, std::span<const float> hidden, int64_t m, int64_t topk) const;

 private:
  explicit RuntimeArtifact(std::shared_ptr<const ArtifactState> state);
  std::shared_ptr<const ArtifactState> state_;
};

}  // namespace twofour
