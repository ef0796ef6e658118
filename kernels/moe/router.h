#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "formats/families/traits.h"

namespace twofour {

/// How a router makes experts and weights of logits.
struct RouterRule {
  RouterScores scores = RouterScores::kSoftmax;
  bool renormalized = false;            ///< weights of the chosen are brought to a sum of 1
  double scaling = 1;                   ///< of all weights
  int64_t groups = 1, kept_groups = 1;  ///< experts come from the best groups alone
  bool sums_two = false;  ///< a group is as good as its best two experts together; else as its best
};

/// Where tokens go.
struct ExpertChoice {
  std::vector<int32_t> ids;    ///< [M, top_k], the best first
  std::vector<float> weights;  ///< [M, top_k]
};

namespace cpu {

/// Chooses experts by the finite logits [M, experts] of a router, in double. Of equal scores the lower expert
/// wins. `correction` [experts] is added for the choice alone; empty: none.
ExpertChoice choose_experts(const RouterRule& rule, std::span<const float> logits, int64_t experts,
                            int64_t top_k, std::span<const float> correction);

}  // namespace cpu
}  // namespace twofour
