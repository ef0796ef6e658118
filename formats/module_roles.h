#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

// What modules are by their names alone. Every question of that kind is answered here.

namespace twofour {

/// What a module does in its model, as recipes name it.
enum class ModuleRole {
  kRoutedExperts,    ///< routed experts
  kSharedExperts,    ///< with the gate that weighs them
  kRouter,           ///< of experts
  kAttention,        ///< with its index of tokens; not linear attention
  kLinearAttention,  ///< and state-space mixers
  kMlp,              ///< dense MLPs
  kMtp,              ///< all of a layer that predicts further tokens
  kHead,
  kEmbeddings,
};
/// "experts", "shared-experts", "router", "attention", "linear-attention", "mlp", "mtp", "head",
/// "embeddings".
std::string_view role_name(ModuleRole role);
std::optional<ModuleRole> role_from_name(std::string_view name);
/// Every name, in the order above.
std::span<const std::string_view> role_names();
/// The role of a module; nothing where its name tells none. Every module of a layer at or beyond `layers`,
/// the model's count, is kMtp; towers that read images or sound have none.
std::optional<ModuleRole> module_role(std::string_view module, int64_t layers);
/// Whether a module, or a block, is one of the routed experts of a layer that predicts further tokens.
bool is_draft_expert(std::string_view module, int64_t layers);

/// Whether a matrix chooses experts: "mlp.gate", Hunyuan's "mlp.gate.wg", Granite's "router.layer".
bool is_router(std::string_view module);
/// Where a router may be, beside its experts: "gate", "gate.wg".
std::span<const std::string_view> router_paths();
/// Whether a matrix weighs what a shared expert returns.
bool is_shared_expert_gate(std::string_view module);
/// Whether the first part of a name below the block that holds a router and its experts is of the router: its
/// matrix, biases and statistics.
bool is_router_part(std::string_view part);
/// Whether a linear turns hidden states into logits, the model's or a draft's; engines build it by a class of
/// its own.
bool is_head(std::string_view module);
/// The same of the model's own head.
bool is_model_head(std::string_view module);
/// Whether a module is below "mtp", as drafts of DeepSeek-V4 and Qwen are.
bool is_in_mtp(std::string_view module);
/// Whether a name has a word of drafts anywhere.
bool names_draft(std::string_view name);

/// Whether a matrix of that name is applied as one, by the last part of the module's name: an embedding is
/// looked up, a norm multiplies element by element, a convolution slides.
bool is_linear_name(std::string_view module);
/// Whether a matrix of that name is looked up by rows: an embedding, or a piece of one, as
/// "ngram_embedding.shard_3".
bool is_table_name(std::string_view module);
/// The embedding that "ngram_embedding.shard_3" or "ngram_embedding.shards.3" is a piece of; empty of any
/// other name.
std::string_view table_of_piece(std::string_view module);

/// Whether a module's name is that of one matrix of all experts by a naming that no row of naming_rules()
/// knows: "experts.w13", DBRX's "experts.mlp.w1".
bool is_matrix_of_experts(std::string_view module);

}  // namespace twofour
