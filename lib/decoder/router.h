#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "lib/model/model_shape.h"

namespace twofour {

/// Where tokens go.
struct ExpertChoice {
  std::vector<int32_t> ids;    ///< [M, top_k]
  std::vector<float> weights;  ///< [M, top_k]
};

/// Chooses experts by the logits [M, experts] of a router, in double. Of equal scores the lower expert wins.
/// `correction` [experts], where the router has one.
ExpertChoice choose_experts(const RouterShape& router, std::span<const float> logits, int64_t experts,
                            int64_t top_k, std::span<const float> correction);

}  // namespace twofour
