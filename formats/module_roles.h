#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

// The roles of modules, derived from their names alone. No other file derives roles.

namespace twofour {

/// The role of a module in its model, as recipes name it.
enum class ModuleRole {
  kRoutedExperts,    ///< matrices of routed experts
  kSharedExperts,    ///< shared experts, and the gate that weighs their output
  kRouter,           ///< routers of experts: is_router()
  kAttention,        ///< attention and its sparse-attention indexer, but not linear attention
  kLinearAttention,  ///< linear attention and state-space mixers
  kMlp,              ///< dense MLPs
  kMtp,              ///< all modules of a layer that predicts further tokens
  kHead,
  kEmbeddings,
};
/// The name of a role: "experts", "shared-experts", "router", "attention", "linear-attention", "mlp", "mtp",
/// "head" or "embeddings".
std::string_view role_name(ModuleRole role);
std::optional<ModuleRole> role_from_name(std::string_view name);
/// The names of all roles, in the order of role_name().
std::span<const std::string_view> role_names();
/// The role of a module. Empty if its name shows no role, and for towers that read images or sound. `layers`
/// is the number of layers of the model; every module of a layer with this number or a higher one is kMtp.
std::optional<ModuleRole> module_role(std::string_view module, int64_t layers);
/// True if a module or block belongs to the routed experts of a layer that predicts further tokens. `layers`
/// as for module_role().
bool is_draft_expert(std::string_view module, int64_t layers);

/// True if a module chooses experts: "mlp.gate", Hunyuan's "mlp.gate.wg", Granite's "router.layer". This is
/// the only notion of a router: module_role() gives kRouter to these modules, except in drafts, which are
/// kMtp, and in towers, which have no role.
bool is_router(std::string_view module);
/// The paths, below the block that holds the experts, of routers with one row for each expert: "gate",
/// "gate.wg". Each makes is_router() true.
std::span<const std::string_view> router_paths();
/// True if a matrix weighs the output of a shared expert.
bool is_shared_expert_gate(std::string_view module);
/// True if the tensors with this name belong to a router: its module, or a bias or statistics beside it.
/// `part` is the first part of a tensor's name below the block that holds the router and its experts.
bool is_router_part(std::string_view part);
/// True if a linear turns hidden states into logits, for the model or for its draft. Engines have a separate
/// class for such a linear.
bool is_head(std::string_view module);
/// True if a linear is the head of the model itself, not of a draft.
bool is_model_head(std::string_view module);
/// True if a module turns tokens into vectors: "embed_tokens", "wte".
bool is_embedding(std::string_view module);
/// True if a module or tensor belongs to a part of a model that reads images or sound.
bool is_in_tower(std::string_view name);
/// True if a module is below a module named "mtp", as the drafts of DeepSeek-V4 and Qwen are.
bool is_in_mtp(std::string_view module);
/// True if a name contains a word that drafts have in their names.
bool names_draft(std::string_view name);

}  // namespace twofour
