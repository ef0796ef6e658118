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

/// The settings of experts in a config.
struct ExpertRules {
  int64_t experts = 0;  ///< the count that config.json states
  int64_t top_k = 1;    ///< experts for each token
  int64_t groups = 1;   ///< of experts; a token uses `top_groups` of them
  int64_t top_groups = 1;
  bool two_a_group = false;  ///< groups are scored by their best two
};
/// Throws Error if config.json has no count of experts, or one that no edit can change.
ExpertRules expert_rules(const Checkpoint& checkpoint, const std::vector<ExpertBlock>& blocks);

/// Throws Error unless `experts` names every block, the same count of existing experts in each, at least as
/// many as a token needs and, with groups, equally many of each.
void check_kept_experts(const Checkpoint& checkpoint, const std::vector<ExpertBlock>& blocks,
                        const std::map<std::string, std::vector<int64_t>>& experts, const std::string& where);

/// The edit that leaves `count` experts of each block, those with the largest `P.saliency` F32 [E] in the
/// safetensors file `by`; in a tie, the lower number. With groups, the best of each. Throws Error on entries
/// that are missing, unknown, of another type or shape, or NaN.
Edit keep_salient_experts(const Checkpoint& checkpoint, int64_t count, const std::filesystem::path& by);

/// The edit that leaves the experts that a JSON file names: {"P": [numbers]}. Throws Error as the others.
Edit keep_named_experts(const Checkpoint& checkpoint, const std::filesystem::path& file);

}  // namespace twofour
