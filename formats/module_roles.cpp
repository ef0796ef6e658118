#include "formats/module_roles.h"

#include <algorithm>
#include <array>
#include <iterator>

#include "formats/naming.h"

namespace twofour {
namespace {

constexpr std::string_view kRoleNames[] = {
    "experts", "shared-experts", "router",    "attention", "linear-attention", "mlp",
    "mtp",     "head",           "embeddings"};

using enum ModuleRole;

/// The role of all modules whose names contain these parts. The first row that matches counts. The paths of
/// experts and MLPs are in naming_rules(), and routers are found by is_router().
struct RoleRule {
  ModuleRole role;
  bool is_last;  ///< true if only the last part of the name counts
  std::array<std::string_view, 6> parts;
  bool fits(std::string_view module) const {
    return std::any_of(parts.begin(), parts.end(), [&](std::string_view part) {
      return !part.empty() && (is_last ? leaf_of(module) == part : has_part(module, part));
    });
  }
};
/// Source: Hugging Face transformers, models; for DeepSeek-V4, its reference inference code.
constexpr RoleRule kRoles[] = {
    {kMtp, false, {"mtp", "draft_model"}},
    {kSharedExperts, true, {"shared_expert_gate"}},
    {kSharedExperts, false, {"shared_expert", "shared_experts", "shared_mlp"}},
    {kRoutedExperts, false, {"experts"}},
    {kLinearAttention, false, {"linear_attn", "mamba"}},
    {kAttention, false, {"self_attn", "attn", "attention"}},
    // Nemotron-H gives the same name to mixers of all kinds.
    {kAttention, true, {"q_proj", "k_proj", "v_proj", "o_proj"}},
    {kLinearAttention, true, {"in_proj", "out_proj"}},
    {kHead, true, {"lm_head", "head"}},
    {kEmbeddings, false, {"embed_tokens", "embed_tokens_per_layer", "embeddings", "embed", "wte"}},
    {kMlp, false, {"mlp", "feed_forward", "ffn"}},
};

/// Parts of models that read something other than text. They have their own layers and attention.
constexpr std::string_view kOtherInputs[] = {"vision_tower", "vision_model",          "visual",
                                             "audio_tower",  "audio_model",           "embed_vision",
                                             "embed_audio",  "multi_modal_projector", "mm_projector"};

/// The number after the first "layers." of a name, or -1 if there is none.
int64_t layer_of(std::string_view module) {
  constexpr std::string_view kLayers = "layers.";
  const size_t at = module.find(kLayers);
  if (at == module.npos || (at > 0 && module[at - 1] != '.')) return -1;
  const std::string_view rest = module.substr(at + kLayers.size());
  return parse_index(rest.substr(0, rest.find('.'))).value_or(-1);
}

}  // namespace

std::string_view role_name(ModuleRole role) { return kRoleNames[static_cast<size_t>(role)]; }

std::span<const std::string_view> role_names() { return kRoleNames; }

std::optional<ModuleRole> role_from_name(std::string_view name) {
  const auto at = std::find(std::begin(kRoleNames), std::end(kRoleNames), name);
  if (at == std::end(kRoleNames)) return std::nullopt;
  return static_cast<ModuleRole>(at - std::begin(kRoleNames));
}

namespace {

/// The role of a module within its layer. The layer may belong to a draft or to the model.
std::optional<ModuleRole> role_in_layer(std::string_view module) {
  if (const auto known = parse_module_name(module)) {
    if (known->kind == BlockKind::kRoutedExperts) return kRoutedExperts;
    if (known->kind == BlockKind::kSharedExpert) return kSharedExperts;
    return kMlp;
  }
  if (is_router(module)) return kRouter;
  for (const RoleRule& rule : kRoles) {
    if (rule.role != kMtp && rule.fits(module)) return rule.role;
  }
  return std::nullopt;
}

}  // namespace

bool is_in_tower(std::string_view name) {
  return std::any_of(std::begin(kOtherInputs), std::end(kOtherInputs),
                     [&](std::string_view part) { return has_part(name, part); });
}

std::optional<ModuleRole> module_role(std::string_view module, int64_t layers) {
  if (is_in_tower(module)) return std::nullopt;
  // All modules of a draft are kMtp, whatever their role within its layer.
  return kRoles[0].fits(module) || layer_of(module) >= layers ? kMtp : role_in_layer(module);
}

bool is_draft_expert(std::string_view module, int64_t layers) {
  return module_role(module, layers) == kMtp && role_in_layer(module) == kRoutedExperts;
}

namespace {

/// Source: Hugging Face transformers, models: Hunyuan's matrix is below the gate; Granite's, gemma-4's and
/// Hunyuan 3's are below the router. LongCat's "router.classifier" is missing here, because it has rows for
/// experts without weights, too.
constexpr std::string_view kRouterPaths[] = {"gate",    "router",      "router.layer",
                                             "gate.wg", "router.proj", "router.gate"};
/// The modules that a matrix "gate" belongs to without choosing experts.
constexpr std::string_view kOtherGates[] = {"self_attn", "attn",          "attention",      "linear_attn",
                                            "experts",   "shared_expert", "shared_experts", "shared_mlp"};
/// Source: Hugging Face transformers, models; DeepSeek's, MiniMax's, ERNIE's and Ling's own code.
constexpr std::string_view kRouterParts[] = {"gate",        "router",      "e_score_correction_bias",
                                             "expert_bias", "router_bias", "moe_statics"};

template <class List>
bool is_one_of(const List& list, std::string_view name) {
  return std::find(std::begin(list), std::end(list), name) != std::end(list);
}

}  // namespace

std::span<const std::string_view> router_paths() { return kRouterPaths; }

bool is_router(std::string_view module) {
  if (has_part(module, "router")) return !parse_module_name(module);
  const bool is_gate = ends_in(module, "gate") || ends_in(module, "gate.wg");
  return is_gate && !any_part(module, [](std::string_view part) { return is_one_of(kOtherGates, part); });
}

bool is_shared_expert_gate(std::string_view module) { return leaf_of(module) == "shared_expert_gate"; }

bool is_embedding(std::string_view module) { return role_in_layer(module) == kEmbeddings; }

bool is_router_part(std::string_view part) { return is_one_of(kRouterParts, part); }

bool is_model_head(std::string_view module) {
  return leaf_of(module) == "lm_head" || module == "head" || module == "output";
}

bool is_head(std::string_view module) { return is_model_head(module) || ends_in(module, "shared_head.head"); }

bool is_in_mtp(std::string_view module) { return is_below(module, "mtp"); }

bool names_draft(std::string_view name) {
  constexpr std::string_view kWords[] = {"mtp", "nextn", "draft", "eagle"};
  return std::any_of(std::begin(kWords), std::end(kWords),
                     [&](std::string_view word) { return name.find(word) != name.npos; });
}

}  // namespace twofour
