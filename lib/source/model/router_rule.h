#pragma once
#include <cstdint>
#include <string_view>

#include "formats/families/family.h"
#include "formats/json.h"
#include "kernels/moe/router.h"

namespace twofour {

/// Returns the router that a config.json describes by softmax and norm_topk_prob. Null if it describes none.
const FamilyRouter* find_described_router(const Json& config);

/// True if a key of config.json determines how logits become scores: scoring_func,
/// moe_router_activation_func, moe_router_score_function, moe_router_use_sigmoid and similar keys.
bool is_scoring_key(std::string_view key);

class Settings;
/// Reads a router's rule from the family's row and config.json. Throws Error on settings that describe a
/// different router, and on impossible numbers.
RouterRule read_router_rule(const FamilyRouter& family, const Settings& settings, int64_t experts,
                            int64_t top_k);

}  // namespace twofour
