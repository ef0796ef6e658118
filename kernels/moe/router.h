#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "formats/families/traits.h"

namespace twofour {

/// The rule by which a router turns logits into experts and weights.
struct RouterRule {
  RouterScores scores = RouterScores::kSoftmax;
  bool renormalized = false;            ///< weights of the chosen experts are normalized to a sum of 1
  double scaling = 1;                   ///< factor of all weights
  int64_t groups = 1, kept_groups = 1;  ///< experts are chosen only from the best groups
  bool sums_two = false;                ///< a group's score is the sum of its two best, otherwise its best
};

/// The experts that a router chose for tokens.
struct ExpertChoice {
  std::vector<int32_t> ids;    ///< [M, top_k], the best first
  std::vector<float> weights;  ///< [M, top_k]
};

namespace cpu {

/// Chooses experts by the finite logits [M, experts] of a router, in double. If two experts have equal
/// scores, the lower id is chosen. `correction` [experts] is added to scores only to choose experts; it may
/// be empty.
ExpertChoice choose_experts(const RouterRule& rule, std::span<const float> logits, int64_t experts,
                            int64_t top_k, std::span<const float> correction);
/// The weights of experts `ids` [M, top_k] that were chosen without the logits, as by a table of tokens.
ExpertChoice weigh_experts(const RouterRule& rule, std::span<const float> logits, int64_t experts,
                           int64_t top_k, std::vector<int32_t> ids);

}  // namespace cpu
}  // namespace twofour
