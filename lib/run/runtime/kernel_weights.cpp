#include "lib/run/runtime/kernel_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "formats/error.h"
#include "formats/layouts/checkpoint_rows.h"
#include "formats/layouts/layouts.h"
#include "kernels/device/device.h"
#include "kernels/multiply/device_layouts.h"

namespace twofour {
namespace {

MoeOptions moe_options(const LayerOptions& options, const int32_t* expert_map) {
  return {expert_map, static_cast<int64_t>(options.expert_map.size()), options.weight_on_input,
          options.limit};
}

}  // namespace

cuda::SparseExperts sparse_experts(cuda::SparseLayout layout, const Shape& shape, const PlacedMatrix& at) {
  cuda::SparseExperts w;
  w.layout = layout;
  std::copy_n(at.parts, std::size(w.parts), w.parts);
  w.e = shape.e, w.n = shape.n, w.k = shape.k;
  w.global_scale = at.global_scale;
  return w;
}

cuda::DenseWeights dense_weights(cuda::DenseLayout layout, const Shape& shape, const PlacedMatrix& at) {
  cuda::DenseWeights w;
  w.layout = layout;
  w.codes = at.parts[0], w.scales = at.parts[1];
  w.e = shape.e, w.n = shape.n, w.k = shape.k, w.gated = shape.gated;
  w.global_scale = at.global_scale;
  return w;
}

KernelLayout kernel_layout(const std::string& layout) {
  KernelLayout found;
  with_stored(layout, [&]<class L>() {
    found = {cuda::kSparseLayout<L>, cuda::kDenseLayout<L>};
    static_assert(!cuda::kSparseLayout<L> || std::is_same_v<typename L::Atom, SparseGroup>);
    static_assert(!cuda::kDenseLayout<L> || std::is_same_v<typename L::Atom, DenseGroup>);
  });
  return found;
}

cpu::Experts host_experts(const std::string& layout, const Shape& shape, const PlacedMatrix& at) {
  cpu::Experts w;
  w.layout = layout;
  w.shape = shape;
  std::copy_n(at.parts, std::size(w.parts), w.parts);
  w.global_scale = at.global_scale;
  return w;
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

void check_kernel(const LayerInfo& info) {
  const KernelLayout layout = kernel_layout(info.layout);
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

int chosen_cuda_device(const std::string& name, int index) {
  if (!cuda_device())
    throw Error(fmt::format("{}: expected a CUDA device, found none ({})", name, no_cuda_reason()));
  if (const int count = cuda_device_count(); index >= count)
    throw Error(fmt::format("{}: expected a CUDA device from 0 to {}, found {}", name, count - 1, index));
  return index >= 0 ? index : current_cuda_device();
}

void place_weights(LayerState& layer, const std::array<Shape, 2>& shapes,
                   const std::array<PlacedMatrix, 2>& placed, const int32_t* expert_map) {
  const MoeOptions options = moe_options(layer.options, expert_map);
  if (layer.device == Device::cpu) {
    layer.cpu.w13 = host_experts(layer.info.layout, shapes[0], placed[0]);
    layer.cpu.w2 = host_experts(layer.info.layout, shapes[1], placed[1]);
    static_cast<MoeOptions&>(layer.cpu) = options;
    return;
  }
  const KernelLayout layout = kernel_layout(layer.info.layout);
  layer.is_dense = layout.dense.has_value();
  if (layer.is_dense) {
    layer.dense.w13 = dense_weights(*layout.dense, shapes[0], placed[0]);
    layer.dense.w2 = dense_weights(*layout.dense, shapes[1], placed[1]);
    static_cast<MoeOptions&>(layer.dense) = options;
  } else {
    layer.sparse.w13 = sparse_experts(*layout.sparse, shapes[0], placed[0]);
    layer.sparse.w2 = sparse_experts(*layout.sparse, shapes[1], placed[1]);
    static_cast<MoeOptions&>(layer.sparse) = options;
  }
}

}  // namespace twofour
