#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "formats/error.h"
#include "formats/layouts/layouts.h"
#include "kernels/device_upload.h"
#include "lib/threads/interrupt.h"
#include "lib/layer_terms.h"
#include "lib/runtime/state.h"
#include "lib/runtime/stored_check.h"

namespace twofour {
namespace {

constexpr uint64_t kDeviceAlignment = 256;

uint64_t aligned(uint64_t bytes) {
  return (bytes + kDeviceAlignment - 1) / kDeviceAlignment * kDeviceAlignment;
}

std::vector<float> read_global_scales(const Checkpoint& artifact, const LayerMatrix& matrix) {
  std::vector<float> scales(static_cast<size_t>(matrix.shape.e));
  artifact.read(matrix.global_scale, 0,
                {reinterpret_cast<uint8_t*>(scales.data()), scales.size() * sizeof(float)});
  for (size_t e = 0; e < scales.size(); ++e) {
    if (std::isfinite(scales[e]) && scales[e] > 0) continue;
    throw Error(fmt::format("{}: expert {}: expected a finite global scale above 0, found {}",
                            artifact.where(matrix.global_scale), e, scales[e]));
  }
  return scales;
}

StoredPart stored_part(const ArtifactState& state, const LayerInfo& info, const LayerMatrix& matrix,
                       size_t p) {
  return {info.layout, static_cast<int>(p), matrix.shape, state.artifact.where(matrix.parts[p])};
}

MoeOptions moe_options(const LayerOptions& options, const int32_t* expert_map) {
  return {expert_map, static_cast<int64_t>(options.expert_map.size()), options.weight_on_input,
          options.limit};
}

void map_layer(const ArtifactState& state, const std::array<LayerMatrix, 2>& matrices, LayerState& layer) {
  const Checkpoint& artifact = state.artifact;
  for (const size_t which : {size_t{0}, size_t{1}}) {
    const LayerMatrix& matrix = matrices[which];
    cpu::Experts& experts = which == 0 ? layer.cpu.w13 : layer.cpu.w2;
    layer.global_scales[which] = read_global_scales(artifact, matrix);
    experts.layout = layer.info.layout;
    experts.shape = matrix.shape;
    experts.global_scale = layer.global_scales[which].data();
    for (size_t p = 0; p < matrix.parts.size(); ++p) {
      const TensorInfo& tensor = artifact.tensors()[matrix.parts[p]];
      const Shard& shard = artifact.shard_of(matrix.parts[p]);
      MappedBytes mapped(shard.file, shard.data_begin + tensor.begin, tensor.bytes());
      const StoredPart part = stored_part(state, layer.info, matrix, p);
      for_pieces(mapped.bytes().size(), [&](size_t at, size_t count) {
        check_stored(part, static_cast<int64_t>(at), mapped.bytes().subspan(at, count));
      });
      check_interrupt();
      experts.parts[p] = mapped.bytes().data();
      layer.files.push_back(&shard.file);
      layer.mapped.push_back(std::move(mapped));
    }
  }
  static_cast<MoeOptions&>(layer.cpu) = moe_options(
      layer.options, layer.options.expert_map.empty() ? nullptr : layer.options.expert_map.data());
}

/// What upload_matrix left at the device.
struct Uploaded {
  const uint8_t* parts[3] = {};
  const float* global_scale = nullptr;
};

/// Lays tensors down one behind the other in a block of device memory.
class Uploader {
 public:
  Uploader(const ArtifactState& state, LayerState& layer)
      : state_(state), layer_(layer), upload_(RuntimeArtifact::kStagingBytes / 2) {}

  Uploaded matrix(const LayerMatrix& matrix) {
    const Checkpoint& artifact = state_.artifact;
    Uploaded to;
    for (size_t p = 0; p < matrix.parts.size(); ++p) {
      const StoredPart part = stored_part(state_, layer_.info, matrix, p);
      const size_t tensor = matrix.parts[p];
      to.parts[p] = place(artifact.tensors()[tensor].bytes(), [&](size_t begin, std::span<uint8_t> bytes) {
        check_interrupt();
        for_pieces(bytes.size(), [&](size_t at, size_t count) {
          artifact.read(tensor, begin + at, bytes.subspan(at, count));
          check_stored(part, static_cast<int64_t>(begin + at), bytes.subspan(at, count));
        });
      });
      artifact.shard_of(tensor).file.check_unchanged();
    }
    to.global_scale = reinterpret_cast<const float*>(values(read_global_scales(artifact, matrix)));
    return to;
  }

  template <class T>
  uint8_t* values(const std::vector<T>& from) {
    return place(from.size() * sizeof(T), [&](size_t begin, std::span<uint8_t> bytes) {
      std::memcpy(bytes.data(), reinterpret_cast<const uint8_t*>(from.data()) + begin, bytes.size());
    });
  }
  void finish() { upload_.finish(); }

 private:
  uint8_t* place(uint64_t bytes, const std::function<void(size_t, std::span<uint8_t>)>& fill) {
    uint8_t* to = layer_.memory.as<uint8_t>() + at_;
    upload_.copy(to, static_cast<size_t>(bytes), fill);
    at_ += aligned(bytes);
    return to;
  }

  const ArtifactState& state_;
  LayerState& layer_;
  cuda::DeviceUpload upload_;
  uint64_t at_ = 0;
};

cuda::SparseExperts sparse_experts(const LayerInfo& info, const Shape& shape, const Uploaded& at) {
  cuda::SparseExperts w;
  w.layout = info.layout == KMajorPlanes::name ? cuda::SparseLayout::planes : cuda::SparseLayout::packed;
  std::copy(at.parts, at.parts + 3, w.parts);
  w.e = shape.e, w.n = shape.n, w.k = shape.k;
  w.global_scale = at.global_scale;
  return w;
}

cuda::DenseWeights dense_weights(const Shape& shape, const Uploaded& at) {
  cuda::DenseWeights w;
  w.layout = cuda::DenseLayout::g8;
  w.codes = at.parts[0], w.scales = at.parts[1];
  w.e = shape.e, w.n = shape.n, w.k = shape.k, w.gated = shape.gated;
  w.global_scale = at.global_scale;
  return w;
}

/// What the kernels do not take, told before anything is copied.
void check_kernel(const LayerInfo& info) {
  const auto refuse = [&](const std::string& expected, const std::string& found) {
    throw Error(fmt::format("{}: expected {} for CUDA, found {}", info.name, expected, found));
  };
  const bool is_g8 = info.layout == GateUpInterleaved8::name;
  constexpr int64_t kMaxExperts = 8192;
  const int bits = is_g8 ? 20 : 23;
  if (info.e > kMaxExperts) refuse(fmt::format("at most {} experts", kMaxExperts), fmt::format("{}", info.e));
  if (std::max(info.h, info.i) >= int64_t{1} << bits)
    refuse(fmt::format("H and I below 2^{}", bits), fmt::format("{} and {}", info.h, info.i));
  if (is_g8 && !info.gated) refuse("g8 with a gate", "none");
}

void upload_layer(const ArtifactState& state, const std::array<LayerMatrix, 2>& matrices, uint64_t bytes,
                  LayerState& layer) {
  if (!cuda_device()) {
    throw Error(
        fmt::format("{}: expected a CUDA device, found none ({})", layer.info.name, no_cuda_reason()));
  }
  check_kernel(layer.info);
  layer.memory = cuda::DeviceMemory(static_cast<size_t>(bytes));
  Uploader uploader(state, layer);
  const Uploaded w13 = uploader.matrix(matrices[0]), w2 = uploader.matrix(matrices[1]);
  const auto* map = layer.options.expert_map.empty()
                        ? nullptr
                        : reinterpret_cast<const int32_t*>(uploader.values(layer.options.expert_map));
  uploader.finish();
  const MoeOptions options = moe_options(layer.options, map);
  layer.is_dense = layer.info.layout == GateUpInterleaved8::name;
  if (layer.is_dense) {
    layer.dense.w13 = dense_weights(matrices[0].shape, w13);
    layer.dense.w2 = dense_weights(matrices[1].shape, w2);
    static_cast<MoeOptions&>(layer.dense) = options;
  } else {
    layer.sparse.w13 = sparse_experts(layer.info, matrices[0].shape, w13);
    layer.sparse.w2 = sparse_experts(layer.info, matrices[1].shape, w2);
    static_cast<MoeOptions&>(layer.sparse) = options;
  }
}

void check_options(const LayerInfo& info, const LayerOptions& options) {
  for (size_t i = 0; i < options.expert_map.size(); ++i) {
    const int32_t e = options.expert_map[i];
    if (e >= -1 && e < info.e) continue;
    throw Error(fmt::format("{}: expert_map[{}]: expected -1 to {}, found {}", info.name, i, info.e - 1, e));
  }
  if (!std::isfinite(options.limit) || options.limit < 0)
    throw Error(fmt::format("{}: expected a limit of 0 (none) or above, found {}", info.name, options.limit));
}

const LayerInfo& checked(const std::vector<LayerInfo>& layers, size_t layer) {
  if (layer < layers.size()) return layers[layer];
  throw Error(fmt::format("expected a layer from 0 to {}, found {}", layers.size() - 1, layer));
}

}  // namespace

uint64_t RuntimeArtifact::device_bytes(size_t index, const LayerOptions& options) const {
  checked(state_->layers, index);
  uint64_t bytes = aligned(options.expert_map.size() * sizeof(int32_t));
  for (const LayerMatrix& matrix : state_->matrices[index]) {
    bytes += aligned(state_->artifact.tensors()[matrix.global_scale].bytes());
    for (const size_t part : matrix.parts) bytes += aligned(state_->artifact.tensors()[part].bytes());
  }
  return bytes;
}

void RuntimeArtifact::check_layer(size_t index) const {
  const LayerInfo& info = checked(state_->layers, index);
  if (const auto why = why_not_run(state_->artifact, info.name, info.gated)) throw Error(*why);
}

RuntimeLayer RuntimeArtifact::load(size_t index, Device device, const LayerOptions& options) const {
  auto layer = std::make_unique<LayerState>();
  layer->artifact = state_;
  layer->info = checked(state_->layers, index);
  layer->device = device;
  layer->options = options;
  check_options(layer->info, options);
  check_layer(index);
  if (device == Device::cpu) {
    map_layer(*state_, state_->matrices[index], *layer);
  } else {
    upload_layer(*state_, state_->matrices[index], device_bytes(index, options), *layer);
  }
  return RuntimeLayer(std::move(layer));
}

}  // namespace twofour
