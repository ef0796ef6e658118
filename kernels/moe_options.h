#pragma once
#include <cstdint>

namespace twofour {

/// How a model runs the routed experts of a layer, whatever they are stored as.
struct MoeOptions {
  /// [map_size] global to local expert, -1: not here; nullptr: the identity. Where the layer's weights are.
  const int32_t* expert_map = nullptr;
  int64_t map_size = 0;
  /// The router's weight multiplies hidden, before W4A4 quantizes it, instead of the result.
  bool weight_on_input = false;
  float limit = 0;  ///< clamp of gate and up (product.md, "The MoE layer"); 0: none
};

}  // namespace twofour
