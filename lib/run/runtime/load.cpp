#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <string>

#include "formats/error.h"
#include "kernels/device/device.h"
#include "kernels/device/device_memory.h"
#include "lib/base/threads/interrupt.h"
#include "lib/recipe/artifact/why_not_run.h"
#include "lib/run/runtime/kernel_weights.h"
#include "lib/run/runtime/stored_part.h"

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
  if (const auto odd = find_odd_global_scale(scales)) {
    throw Error(fmt::format("{}: expert {}: expected a finite global scale above 0, found {}",
                            artifact.where(matrix.global_scale), *odd, scales[*odd]));
  }
  return scales;
}

StoredPart stored_part(const ArtifactState& state, const LayerInfo& info, const LayerMatrix& matrix,
                       size_t p) {
  return make_stored_part(info.layout, static_cast<int>(p), matrix.shape,
                          state.artifact.where(matrix.parts[p]));
}

std::array<Shape, 2> shapes_of(const std::array<LayerMatrix, 2>& matrices) {
  return {matrices[0].shape, matrices[1].shape};
}

void map_layer(const ArtifactState& state, const std::array<LayerMatrix, 2>& matrices, LayerState& layer) {
  const Checkpoint& artifact = state.artifact;
  std::array<PlacedMatrix, 2> placed;
  for (const size_t which : {size_t{0}, size_t{1}}) {
    const LayerMatrix& matrix = matrices[which];
    layer.global_scales[which] = read_global_scales(artifact, matrix);
    placed[which].global_scale = layer.global_scales[which].data();
    for (size_t p = 0; p < matrix.parts.size(); ++p) {
      const TensorInfo& tensor = artifact.tensors()[matrix.parts[p]];
      const Shard& shard = artifact.shard_of(matrix.parts[p]);
      MappedBytes mapped(shard.file, shard.data_begin + tensor.begin, tensor.bytes());
      const StoredPart part = stored_part(state, layer.info, matrix, p);
      for_pieces(mapped.bytes().size(), [&](size_t at, size_t count) {
        check_stored(part, static_cast<int64_t>(at), mapped.bytes().subspan(at, count));
      });
      check_interrupt();
      placed[which].parts[p] = mapped.bytes().data();
      layer.files.push_back(&shard.file);
      layer.mapped.push_back(std::move(mapped));
    }
  }
  place_weights(layer, shapes_of(matrices), placed,
                layer.options.expert_map.empty() ? nullptr : layer.options.expert_map.data());
}

/// Places tensors one after the other in one allocation of device memory.
class Uploader {
 public:
  Uploader(const ArtifactState& state, LayerState& layer)
      : state_(state), layer_(layer), upload_(RuntimeArtifact::kStagingBytes / 2) {}

  PlacedMatrix matrix(const LayerMatrix& matrix) {
    const Checkpoint& artifact = state_.artifact;
    PlacedMatrix to;
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

void upload_layer(const ArtifactState& state, const std::array<LayerMatrix, 2>& matrices, uint64_t bytes,
                  LayerState& layer) {
  layer.cuda_device = chosen_cuda_device(layer.info.name, layer.options.cuda_device);
  const CudaDeviceScope scope(layer.cuda_device);
  check_kernel(layer.info);
  layer.memory = cuda::DeviceMemory(static_cast<size_t>(bytes));
  Uploader uploader(state, layer);
  const PlacedMatrix w13 = uploader.matrix(matrices[0]), w2 = uploader.matrix(matrices[1]);
  const auto* map = layer.options.expert_map.empty()
                        ? nullptr
                        : reinterpret_cast<const int32_t*>(uploader.values(layer.options.expert_map));
  uploader.finish();
  place_weights(layer, shapes_of(matrices), {w13, w2}, map);
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
