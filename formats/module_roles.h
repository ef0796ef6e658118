#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

// The roles of modules by their names alone. No other file decides this.

namespace twofour {

/// The role of a module in its model, as recipes name it.
enum class ModuleRole {
  kRoutedExperts,    ///< routed experts
  kSharedExperts,    ///< with the gate that weighs them
  kRouter,           ///< of experts
  kAttention,        ///< with its index of tokens; not linear attention
  kLinearAttention,  ///< and state-space mixers
  kMlp,              ///< dense MLPs
  kMtp,              ///< all modules of a layer that predicts further tokens
  kHead,
  kEmbeddings,
};
/// "experts", "shared-experts", "router", "attention", "linear-attention", "mlp", "mtp", "head",
/// "embeddings".
std::string_view role_name(ModuleRole role);
std::optional<ModuleRole> role_from_name(std::string_view name);
/// Every name, in the order above.
std::span<const std::string_view> role_names();
/// The role of a module; empty if its name shows none. Every module of a layer at or beyond `layers`, the
/// model's count, is kMtp; towers that read images or sound have none.
std::optional<ModuleRole> module_role(std::string_view module, int64_t layers);
/// True if a module or a block belongs to routed experts of a layer that predicts further tokens.
bool is_draft_expert(std::string_view module, int64_t layers);

/// True if a matrix chooses experts: "mlp.gate", Hunyuan's "mlp.gate.wg", Granite's "router.layer".
bool is_router(std::string_view module);
/// The paths of routers beside their experts: "gate", "gate.wg".
std::span<const std::string_view> router_paths();
/// True if a matrix weighs the output of a shared expert.
bool is_shared_expert_gate(std::string_view module);
/// True if `part` belongs to a router: its matrix, biases and statistics. `part` is the first part of a name
/// below the block that holds the router and its experts.
bool is_router_part(std::string_view part);
/// True if a linear turns hidden states into logits, the model's or a draft's; engines have a class of their
/// own for it.
bool is_head(std::string_view module);
/// True if a linear is the model's own head.
bool is_model_head(std::string_view module);
/// True if a module is below "mtp", as drafts of DeepSeek-V4 and Qwen are.
bool is_in_mtp(std::string_view module);
/// True if a name contains a word for drafts.
bool names_draft(std::string_view name);

/// True if a matrix with this name is applied as one, judged by the last part of the module's name: an
/// embedding is looked up, a norm multiplies element by element, a convolution slides.
bool is_linear_name(std::string_view module);
/// True if a matrix with this name is looked up by rows: an embedding, or a piece of one, as
/// "ngram_embedding.shard_3".
bool is_table_name(std::string_view module);
/// The embedding that "ngram_embedding.shard_3" or "ngram_embedding.shards.3" is a piece of; empty for any
/// other name.
std::string_view table_of_piece(std::string_view module);

/// True if a module is one matrix of all experts, by a naming that no row of naming_rules() knows:
/// "experts.w13", DBRX's "experts.mlp.w1".
bool is_matrix_of_experts(std::string_view module);

}  // namespace twofour
