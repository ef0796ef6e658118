#pragma once
#include <array>
#include <cstdint>
#include <string_view>

#include "formats/json.h"
#include "kernels/moe/router.h"

namespace twofour {

/// Whether the weights of chosen experts are brought to a sum of 1.
enum class Renormalized {
  kNever,       ///< whatever norm_topk_prob says
  kIfSaid,      ///< where norm_topk_prob says so
  kUnlessSaid,  ///< where norm_topk_prob does not say otherwise
  kAlways       ///< norm_topk_prob may not say otherwise
};

/// Whether experts come from the best groups of n_group alone, topk_group of them.
enum class ExpertGroups {
  kNone,
  kIfSaid,  ///< where topk_method is group_limited_greedy; a group is as good as its best
  kByTwo    ///< a group is as good as its best two together
};

/// How the models of a model_type choose experts: by scores of the logits gate.weight x. Settings other than
/// those that a row has are refused, as they describe another router.
/// Sources: Hugging Face transformers 5.17, src/transformers/models/*/{configuration,modeling}_*.py; of
/// deepseek the code that its checkpoints carry.
struct FamilyRouter {
  std::array<const char*, 9> model_types;  ///< as config.json has them; nullptr: none
  RouterScores scores = RouterScores::kSoftmax;
  Renormalized renormalized = Renormalized::kAlways;
  /// A tensor [experts] below the block of gate.weight ("gate.e_score_correction_bias"), added to scores for
  /// the choice alone; nullptr: none.
  const char* correction = nullptr;
  double scaling = 0;  ///< of all weights where config.json has no routed_scaling_factor; 0: never scaled
  ExpertGroups groups = ExpertGroups::kNone;
  int group_count = 1, kept_groups = 1;  ///< where it has no n_group, topk_group
};

/// nullptr: no row.
const FamilyRouter* find_family_router(std::string_view model_type);
/// The router that a config.json describes by itself: one that says softmax and norm_topk_prob; nullptr where
/// it does not.
const FamilyRouter* find_described_router(const Json& config);

/// Whether a key of config.json says how logits become scores: scoring_func, moe_router_activation_func,
/// moe_router_score_function, moe_router_use_sigmoid and others of the kind.
bool is_scoring_key(std::string_view key);

class Settings;
/// The rule of a router by its row and config.json. Throws Error on settings that describe another router and
/// on numbers that cannot be.
RouterRule read_router_rule(const FamilyRouter& family, const Settings& settings, int64_t experts,
                            int64_t top_k);

}  // namespace twofour
