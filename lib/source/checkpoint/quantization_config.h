#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "formats/json.h"
#include "lib/source/checkpoint/checkpoint.h"

namespace twofour {

/// The quantization entry of a config.json and its place, for example "text_config.quantization_config".
struct QuantizationEntry {
  const Json& value;
  std::string place;
};
/// The entry that applies; nullopt if there is none or it is empty.
std::optional<QuantizationEntry> quantization_entry(const Json& config);

/// The files that AutoGPTQ and AutoAWQ write beside config.json, or in place of its entry.
inline constexpr const char* kSideConfigs[] = {"quantize_config.json", "quant_config.json"};
/// One of these files, an object with `quant_method`.
struct SideConfig {
  std::string file;
  Json value;
};
/// Reads the ones in a directory, or the `quantization_config` in them. Throws Error on one that is no JSON
/// object.
std::vector<SideConfig> read_side_configs(const std::filesystem::path& directory);

/// The quant_method of an entry with one name for all spellings: "gptq" for every name with "gptq" in it,
/// "gptq_marlin" for example, "awq" for every name with "awq", "auto-round" for "auto_round" and
/// "intel/auto-round", "compressed-tensors". Any other is returned as written; empty if there is none.
/// Sources: vLLM, quantization/__init__.py; GPTQModel, quantization/config.py; AutoRound, export.
std::string quantization_method(const Json& entry);

/// The storage of weights that a quantization entry states, for all modules together.
struct StatedStorage {
  std::vector<std::pair<int64_t, int64_t>> blocks;  ///< block sizes of FP8, rows and columns
  std::vector<std::string> unread_blocks;           ///< as written in the entry
  std::vector<int64_t> group_sizes;                 ///< group sizes of integers
  std::set<int64_t> bits;                           ///< bits of integers
  std::string method;                               ///< result of quantization_method()
  std::string format;                               ///< checkpoint_format, version or packing_format
  std::string other_format;                         ///< another key's value that contradicts it
  std::string fp8_format;                           ///< fmt: "e4m3"
  bool is_unlisted = false;                         ///< no reader knows the method
  bool has_order = false;                           ///< GPTQ's desc_act: a g_idx beside the codes
};
StatedStorage stated_storage(const Json& quantization);
/// True if a number may be a size: so small that no product of two overflows.
bool is_stated_size(int64_t stated);

/// Throws Error if config.json has one entry at its top and another in a language model's config, such as
/// text_config, since an output can have only one. Throws Error if an entry is nested deeper than that.
void refuse_entries_that_cannot_be_kept(const Checkpoint& source);

/// The source's quantization entry, from config.json or hf_quant_config.json; null if it has none.
Json source_quantization(const Checkpoint& source);

/// The same for the configuration by which values are read.
Json quantization_of_values(const Checkpoint& source);

/// The place of a key of that entry, for messages: "DIRECTORY/config.json:
/// text_config.quantization_config.KEY", for example, or "DIRECTORY/hf_quant_config.json: KEY".
std::string quantization_place(const Checkpoint& source, const std::string& key);

/// Restores the source's config.json from that of an artifact in a layout. The layout's `base` is the
/// original quantization entry and `base_place` its path ("text_config.quantization_config", for example; by
/// default the top). If `base` came from `hf_quant_config`, the source's own file, or is null, no entry is
/// written. `beside_base` restores the others. Any other config is returned unchanged.
Json original_config(const Json& config, const Json& hf_quant_config);

/// The source's config.json with that quantization_config and no other, at its top or where the source's
/// entry is (in text_config, for example); null: without any.
Json config_with_quantization(const Checkpoint& source, Json entry);
/// The same for a config.json.
Json with_quantization(Json config, Json entry);

/// The config.json of an artifact in a layout: `entry` at its top, with the source's entry under `base`, its
/// path if that is not the usual one, and the source's other entries. `base`: replaces the source's entry.
Json config_with_layout(const Checkpoint& source, Json entry, const Json* base = nullptr);

/// True if the source's KV cache is FP8. Throws Error if it is quantized in a way that not every dialect can
/// express.
bool has_fp8_kv_cache(const Checkpoint& source);

}  // namespace twofour
