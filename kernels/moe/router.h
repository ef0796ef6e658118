#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "formats/families/traits.h"

namespace twofour {

/// How a router turns logits into experts and weights.
struct RouterRule {
  RouterScores scores = RouterScores::kSoftmax;
  bool renormalized = false;            ///< weights of the chosen experts are normalized to a sum of 1
  double scaling = 1;                   ///< of all weights
  int64_t groups = 1, kept_groups = 1;  ///< experts are chosen only from the best groups
  bool sums_two = false;                ///< a group's score is the sum of its best two experts; else its best
};

/// The chosen experts of tokens.
struct ExpertChoice {
  std::vector<int32_t> ids;    ///< [M, top_k], the best first
  std::vector<float> weights;  ///< [M, top_k]
};

namespace cpu {

/// Chooses experts by the finite logits [M, experts] of a router, in double. The lower of two experts with
/// equal scores wins. `correction` [experts] is added only for the choice; empty: none.
ExpertChoice choose_experts(const RouterRule& rule, std::span<const float> logits, int64_t experts,
                            int64_t top_k, std::span<const float> correction);

}  // namespace cpu
}  // namespace twofour
