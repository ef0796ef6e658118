#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <iterator>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "formats/e4m3.h"
#include "formats/error.h"
#include "formats/layouts/layouts.h"
#include "formats/layouts/part_map.h"
#include "kernels/device/device.h"
#include "kernels/device/device_memory.h"
#include "kernels/multiply/device_layouts.h"
#include "lib/checkpoint/unsupported_terms.h"
#include "lib/runtime/state.h"
#include "lib/threads/interrupt.h"
#include "lib/threads/parallel.h"

namespace twofour {
namespace {

/// Whether both places of both nibbles are in order, for the whole byte at once: 8 + second - first - 1 keeps
/// the top bit of a nibble where second > first.
bool is_legal(uint8_t meta) {
  const unsigned first = meta & 0x33u, second = meta >> 2 & 0x33u;
  return (((second | 0x88u) - first - 0x11u) & 0x88u) == 0x88u;
}

/// Position of the first byte that is not legal; all of them: none. Looks without branches first.
template <class IsLegal>
size_t find_illegal(std::span<const uint8_t> bytes, IsLegal legal) {
  unsigned bad = 0;
  for (const uint8_t byte : bytes) bad |= unsigned{!legal(byte)};
  if (bad == 0) return bytes.size();
  return static_cast<size_t>(std::find_if_not(bytes.begin(), bytes.end(), legal) - bytes.begin());
}

/// A part of a matrix in a layout.
struct StoredPart {
  PartMap map;
  int64_t cols = 0;   ///< bytes of a row
  std::string where;  ///< file and tensor, for messages
};

StoredPart make_stored_part(std::string_view layout, int part, const Shape& shape, std::string where) {
  StoredPart stored{{}, 0, std::move(where)};
  with_layout(layout, [&]<class L>() {
    stored.map = map_part<L>(part, shape);
    stored.cols = L::part(part, shape).cols;
  });
  return stored;
}

/// Throws Error where bytes from `offset` on of a part are what no kernel may meet: metadata that is not two
/// places in order, and block scales that are NaN or negative.
void check_stored(const StoredPart& part, int64_t offset, std::span<const uint8_t> bytes) {
  const PartMap& map = part.map;
  const auto end = offset + static_cast<int64_t>(bytes.size()), expert = map.unit * map.units;
  for (int64_t unit = offset / map.unit; unit * map.unit < end; ++unit) {
    const int64_t begin = unit * map.unit;
    const std::vector<PartRun>& runs = map.runs_of(unit % map.units);
    auto run = std::partition_point(runs.begin(), runs.end(),
                                    [&](const PartRun& r) { return begin + r.begin + r.count <= offset; });
    for (; run != runs.end() && begin + run->begin < end; ++run) {
      if (run->kind == ByteKind::kCodes) continue;
      const bool is_meta = run->kind == ByteKind::kMeta;
      const int64_t from = std::max(offset, begin + run->begin),
                    to = std::min(end, begin + run->begin + run->count);
      const auto some = bytes.subspan(static_cast<size_t>(from - offset), static_cast<size_t>(to - from));
      const size_t bad = is_meta ? find_illegal(some, is_legal)
                                 : find_illegal(some, [](uint8_t b) { return e4m3_is_block_scale(b); });
      if (bad == some.size()) continue;
      const int64_t at = from + static_cast<int64_t>(bad), place = at % expert;
      throw Error(fmt::format("{}: expert {}, row {}, column {}: expected {}, found 0x{:02X}", part.where,
                              at / expert, place / part.cols, place % part.cols,
                              is_meta ? "two ascending positions in each half of the metadata byte"
                                      : "a block scale that is neither NaN nor negative",
                              some[bad]));
    }
  }
}

/// Calls `f(offset, count)` for all pieces of some bytes, by several threads; throws what the first piece
/// threw.
void for_pieces(size_t bytes, const std::function<void(size_t, size_t)>& f) {
  constexpr size_t kPiece = 1u << 20;
  parallel_for((bytes + kPiece - 1) / kPiece, [&](size_t i) {
    const size_t at = i * kPiece;
    f(at, std::min(kPiece, bytes - at));
  });
}

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
  return make_stored_part(info.layout, static_cast<int>(p), matrix.shape,
                          state.artifact.where(matrix.parts[p]));
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
  const uint8_t* parts[kMostParts] = {};
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

cuda::SparseExperts sparse_experts(cuda::SparseLayout layout, const Shape& shape, const Uploaded& at) {
  cuda::SparseExperts w;
  w.layout = layout;
  std::copy_n(at.parts, std::size(w.parts), w.parts);
  w.e = shape.e, w.n = shape.n, w.k = shape.k;
  w.global_scale = at.global_scale;
  return w;
}

cuda::DenseWeights dense_weights(cuda::DenseLayout layout, const Shape& shape, const Uploaded& at) {
  cuda::DenseWeights w;
  w.layout = layout;
  w.codes = at.parts[0], w.scales = at.parts[1];
  w.e = shape.e, w.n = shape.n, w.k = shape.k, w.gated = shape.gated;
  w.global_scale = at.global_scale;
  return w;
}

/// What kernels call a layout: one of them, or neither where no kernel reads it.
struct KernelLayout {
  std::optional<cuda::SparseLayout> sparse;
  std::optional<cuda::DenseLayout> dense;
};

KernelLayout kernel_layout(const std::string& layout) {
  KernelLayout found;
  with_layout(layout, [&]<class L>() {
    found = {cuda::kSparseLayout<L>, cuda::kDenseLayout<L>};
    static_assert(!cuda::kSparseLayout<L> || std::is_same_v<typename L::Atom, SparseGroup>);
    static_assert(!cuda::kDenseLayout<L> || std::is_same_v<typename L::Atom, DenseGroup>);
  });
  return found;
}

/// Refuses what the kernels do not take before anything is copied.
void check_kernel(const LayerInfo& info, const KernelLayout& layout) {
  const auto refuse = [&](const std::string& expected, const std::string& found) {
    throw Error(fmt::format("{}: expected {} for CUDA, found {}", info.name, expected, found));
  };
  if (!layout.sparse && !layout.dense) refuse("a layout that a kernel reads", info.layout);
  constexpr int64_t kMaxExperts = 8192;
  const int bits = layout.dense ? 20 : 23;
  if (info.e > kMaxExperts) refuse(fmt::format("at most {} experts", kMaxExperts), fmt::format("{}", info.e));
  if (std::max(info.h, info.i) >= int64_t{1} << bits)
    refuse(fmt::format("H and I below 2^{}", bits), fmt::format("{} and {}", info.h, info.i));
  if (layout.dense && !info.gated) refuse(fmt::format("{} with a gate", info.layout), "none");
}

void upload_layer(const ArtifactState& state, const std::array<LayerMatrix, 2>& matrices, uint64_t bytes,
                  LayerState& layer) {
  if (!cuda_device()) {
    throw Error(
        fmt::format("{}: expected a CUDA device, found none ({})", layer.info.name, no_cuda_reason()));
  }
  if (const int count = cuda_device_count(); layer.options.cuda_device >= count) {
    throw Error(fmt::format("{}: expected a CUDA device from 0 to {}, found {}", layer.info.name, count - 1,
                            layer.options.cuda_device));
  }
  const CudaDeviceScope scope(layer.options.cuda_device);
  layer.cuda_device = current_cuda_device();
  const KernelLayout layout = kernel_layout(layer.info.layout);
  check_kernel(layer.info, layout);
  layer.memory = cuda::DeviceMemory(static_cast<size_t>(bytes));
  Uploader uploader(state, layer);
  const Uploaded w13 = uploader.matrix(matrices[0]), w2 = uploader.matrix(matrices[1]);
  const auto* map = layer.options.expert_map.empty()
                        ? nullptr
                        : reinterpret_cast<const int32_t*>(uploader.values(layer.options.expert_map));
  uploader.finish();
  const MoeOptions options = moe_options(layer.options, map);
  layer.is_dense = layout.dense.has_value();
  if (layer.is_dense) {
    layer.dense.w13 = dense_weights(*layout.dense, matrices[0].shape, w13);
    layer.dense.w2 = dense_weights(*layout.dense, matrices[1].shape, w2);
    static_cast<MoeOptions&>(layer.dense) = options;
  } else {
    layer.sparse.w13 = sparse_experts(*layout.sparse, matrices[0].shape, w13);
    layer.sparse.w2 = sparse_experts(*layout.sparse, matrices[1].shape, w2);
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
