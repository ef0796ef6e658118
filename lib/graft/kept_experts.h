#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "lib/graft/expert_blocks.h"
#include "lib/recipe/artifact/edit.h"
#include "lib/source/checkpoint/checkpoint.h"

namespace twofour {

/// The settings in config.json that limit which experts can be removed.
struct ExpertRules {
  int64_t experts = 0;  ///< number of routed experts in a layer, as config.json states it
  int64_t top_k = 1;    ///< number of experts that each token uses
  int64_t groups = 1;   ///< number of groups of experts; a token uses `top_groups` of them
  int64_t top_groups = 1;
  bool two_a_group = false;  ///< a group is scored by its best two experts
};
/// Throws Error if config.json has no number of experts, or a number that no edit can change.
ExpertRules expert_rules(const Checkpoint& checkpoint, const std::vector<ExpertBlock>& blocks);

/// Throws Error unless `experts` names every block and keeps the same number of existing experts in each. At
/// least as many experts must stay as a token needs. If experts are in groups, each group must keep the same
/// number.
/// `where` names the source of `experts` in messages.
void check_kept_experts(const Checkpoint& checkpoint, const std::vector<ExpertBlock>& blocks,
                        const std::map<std::string, std::vector<int64_t>>& experts, const std::string& where);

/// Returns the edit that keeps the `count` experts of each block with the largest saliency. The safetensors
/// file `by` holds the tensor `P.saliency` F32 [E] for each block P with E experts. Ties go to the lower
/// number. If experts are in groups, the best of each group stay. Throws Error on entries that are missing,
/// unknown, of a different type or shape, or NaN.
Edit keep_salient_experts(const Checkpoint& checkpoint, int64_t count, const std::filesystem::path& by);

/// Returns the edit that keeps the experts named in a JSON file: {"P": [numbers]} for each block P. Throws
/// Error like check_kept_experts().
Edit keep_named_experts(const Checkpoint& checkpoint, const std::filesystem::path& file);

}  // namespace twofour
