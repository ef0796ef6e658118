#pragma once
#include <array>
#include <optional>
#include <string>

#include "lib/run/runtime/state.h"

namespace twofour {

/// Throws Error if the expert map names an expert that the layer does not have, or if the limit is invalid.
void check_options(const LayerInfo& info, const LayerOptions& options);

/// Throws Error if no CUDA kernel supports the layer. It copies nothing.
void check_kernel(const LayerInfo& info);

/// The index of the CUDA device to use: `index`, or the current device for -1. Throws Error, which names
/// `name`, if there is no such device.
int chosen_cuda_device(const std::string& name, int index);

/// The kernels' identifier of a layout. At most one of the two is set. None is set if no kernel reads the
/// layout.
struct KernelLayout {
  std::optional<cuda::SparseLayout> sparse;
  std::optional<cuda::DenseLayout> dense;
};
KernelLayout kernel_layout(const std::string& layout);

/// Convert a matrix to the form that kernels take.
cuda::SparseExperts sparse_experts(cuda::SparseLayout layout, const Shape& shape, const PlacedMatrix& at);
cuda::DenseWeights dense_weights(cuda::DenseLayout layout, const Shape& shape, const PlacedMatrix& at);
cpu::Experts host_experts(const std::string& layout, const Shape& shape, const PlacedMatrix& at);

/// Sets the addresses of w13 and w2 in the kernels of a layer. `expert_map` is the map in the options, in
/// memory of the same device. Null if there is none.
void place_weights(LayerState& layer, const std::array<Shape, 2>& shapes,
                   const std::array<PlacedMatrix, 2>& placed, const int32_t* expert_map);

}  // namespace twofour
