#pragma once
#include <algorithm>
#include <iterator>
#include <string_view>

#include "formats/module_names.h"

// The kinds of matrices, derived from the names of their modules alone: linears, tables, stacks of experts.

namespace twofour {
namespace module_kinds {

// Source: Hugging Face transformers, models.
inline constexpr std::string_view kTables[] = {"embed",
                                               "embed_in",
                                               "embed_positions",
                                               "embed_tokens",
                                               "embed_tokens_per_layer",
                                               "embedding",
                                               "embeddings",
                                               "ngram_embedding",
                                               "pos_embed",
                                               "position_embedding",
                                               "position_embeddings",
                                               "token_embedding",
                                               "tok_embeddings",
                                               "token_type_embeddings",
                                               "word_embeddings",
                                               "wpe",
                                               "wte"};
inline constexpr std::string_view kConvolutions[] = {"conv", "conv1d", "conv2d", "conv3d"};
inline constexpr std::string_view kMatricesOfExperts[] = {
    "w1",           "w2",  "w3",  "w13",       "v1",      "gate_proj", "up_proj",
    "gate_up_proj", "fc1", "fc2", "down_proj", "linear1", "linear2",   "w1_and_w3"};

}  // namespace module_kinds

/// The embedding to which a piece belongs: "ngram_embedding" for "ngram_embedding.shard_3" and
/// "ngram_embedding.shards.3". Empty for any other name.
inline std::string_view table_of_piece(std::string_view module) {
  constexpr std::string_view kShard = "shard_", kShards = ".shards";
  const std::string_view leaf = leaf_of(module);
  const std::string_view parent = parent_of(module);
  if (leaf.starts_with(kShard) && is_number_part(leaf.substr(kShard.size()))) return parent;
  if (is_number_part(leaf) && parent.ends_with(kShards))
    return parent.substr(0, parent.size() - kShards.size());
  return {};
}

/// True if rows of a matrix with this name are looked up. The matrix is an embedding or a piece of an
/// embedding, such as "ngram_embedding.shard_3".
inline bool is_table_name(std::string_view module) {
  const std::string_view table = table_of_piece(module), leaf = leaf_of(table.empty() ? module : table);
  return std::find(std::begin(module_kinds::kTables), std::end(module_kinds::kTables), leaf) !=
         std::end(module_kinds::kTables);
}

/// True if the last part of a module's name is that of a matrix which multiplies its input. This excludes
/// embeddings, whose rows are looked up, norms, which multiply element by element, and convolutions.
inline bool is_linear_name(std::string_view module) {
  const std::string_view leaf = leaf_of(module);
  const auto ends_leaf = [&](std::string_view name) { return leaf.ends_with(name); };
  return !is_table_name(module) &&
         std::none_of(std::begin(module_kinds::kConvolutions), std::end(module_kinds::kConvolutions),
                      ends_leaf) &&
         leaf.find("norm") == std::string_view::npos;
}

/// True if a module is one matrix of all experts whose name no row of naming_rules() knows, such as
/// "experts.w13" or DBRX's "experts.mlp.w1".
inline bool is_matrix_of_experts(std::string_view module) {
  const auto end = std::end(module_kinds::kMatricesOfExperts);
  if (std::find(std::begin(module_kinds::kMatricesOfExperts), end, leaf_of(module)) == end) return false;
  bool is_below = false, is_numbered = false;
  any_part(parent_of(module), [&](std::string_view part) {
    is_numbered = is_numbered || (is_below && is_number_part(part));
    is_below = is_below || part == "experts";
    return false;
  });
  return is_below && !is_numbered;
}

}  // namespace twofour
