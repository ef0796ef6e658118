#pragma once
#include <array>

#include "lib/runtime/state.h"

namespace twofour {

/// Throws Error where the expert map names what is no expert of the layer, or the limit is none.
void check_options(const LayerInfo& info, const LayerOptions& options);

/// Throws Error where no CUDA kernel takes the layer, before anything is copied.
void check_kernel(const LayerInfo& info);

/// The CUDA device that a layer's options name, or the current one. Throws Error where there is none.
int chosen_cuda_device(const LayerInfo& info, const LayerOptions& options);

/// Points a layer's kernels at w13 and w2. `expert_map` is where that of the options is, in memory of the
/// same device; nullptr without one.
void place_weights(LayerState& layer, const std::array<Shape, 2>& shapes,
                   const std::array<PlacedMatrix, 2>& placed, const int32_t* expert_map);

}  // namespace twofour
