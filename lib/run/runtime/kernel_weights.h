#pragma once
#include <array>
#include <optional>
#include <string>

#include "lib/run/runtime/state.h"

namespace twofour {

/// Throws Error if the expert map names an expert that the layer does not have, or the limit is invalid.
void check_options(const LayerInfo& info, const LayerOptions& options);

/// Throws Error if no CUDA kernel takes the layer, before anything is copied.
void check_kernel(const LayerInfo& info);

/// The CUDA device of an index, or the current one (-1). Throws Error naming `name` if there is none.
int chosen_cuda_device(const std::string& name, int index);

/// The kernels' name of a layout: one of these, or neither if no kernel reads it.
struct KernelLayout {
  std::optional<cuda::SparseLayout> sparse;
  std::optional<cuda::DenseLayout> dense;
};
KernelLayout kernel_layout(const std::string& layout);

/// A matrix in the form that kernels take.
cuda::SparseExperts sparse_experts(cuda::SparseLayout layout, const Shape& shape, const PlacedMatrix& at);
cuda::DenseWeights dense_weights(cuda::DenseLayout layout, const Shape& shape, const PlacedMatrix& at);
cpu::Experts host_experts(const std::string& layout, const Shape& shape, const PlacedMatrix& at);

/// Points a layer's kernels at w13 and w2. `expert_map` is the options' map in memory of the same device;
/// nullptr without one.
void place_weights(LayerState& layer, const std::array<Shape, 2>& shapes,
                   const std::array<PlacedMatrix, 2>& placed, const int32_t* expert_map);

}  // namespace twofour
