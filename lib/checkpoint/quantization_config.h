#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "formats/json.h"
#include "lib/checkpoint/checkpoint.h"

namespace twofour {

/// What a config.json says of quantization, and where: "text_config.quantization_config", for example.
struct QuantizationEntry {
  const Json& value;
  std::string place;
};
/// The entry that applies; empty if there is none or it says nothing.
std::optional<QuantizationEntry> quantization_entry(const Json& config);

/// The files that AutoGPTQ and AutoAWQ write beside config.json, or in place of its entry.
inline constexpr const char* kSideConfigs[] = {"quantize_config.json", "quant_config.json"};
/// What one of them says, an object with `quant_method`.
struct SideConfig {
  std::string file;
  Json value;
};
/// Those that a directory has. Throws Error on one that is no JSON object.
std::vector<SideConfig> read_side_configs(const std::filesystem::path& directory);

/// The quant_method of an entry by the one name of all its spellings: "gptq" of "gptq_marlin" and
/// "gptqmodel", "awq" of "awq_marlin", "auto-round" of "auto_round" and "intel/auto-round",
/// "compressed-tensors". Any other as it is written; empty where there is none.
/// Sources: vLLM, quantization/__init__.py; GPTQModel, quantization/config.py; AutoRound, export.
std::string quantization_method(const Json& entry);

/// What a checkpoint's quantization entries say about the storage of weights, of all modules together.
struct StatedStorage {
  std::vector<std::pair<int64_t, int64_t>> blocks;  ///< of FP8, rows and columns
  std::vector<std::string> unread_blocks;           ///< as the entry has them
  std::vector<int64_t> group_sizes;                 ///< of integers
  std::set<int64_t> bits;                           ///< of integers
  std::string method;                               ///< as quantization_method()
  std::string format;                               ///< checkpoint_format, version or packing_format
  std::string other_format;                         ///< where another key contradicts that
  std::string fp8_format;                           ///< fmt: "e4m3"
  bool has_order = false;                           ///< of GPTQ, desc_act: a g_idx beside the codes
  bool by_gptqmodel = false;                        ///< of GPTQ, meta.quantizer
};
StatedStorage stated_storage(const Json& quantization);
/// Whether a number may be a size: so small that no product of two overflows.
bool is_stated_size(int64_t stated);

/// Throws Error if config.json has one entry at its top and another in its text_config or in another config
/// of a language model, since only one can be kept, and if an entry is deeper than that.
void refuse_entries_that_cannot_be_kept(const Checkpoint& source);

/// The source's quantization entry, from config.json or hf_quant_config.json; null where it has none.
Json source_quantization(const Checkpoint& source);

/// The same of the configuration that says how its values are read.
Json quantization_of_values(const Checkpoint& source);

/// The place of a key of that entry, for messages: "DIRECTORY/config.json:
/// text_config.quantization_config.KEY", for example, or "DIRECTORY/hf_quant_config.json: KEY".
std::string quantization_place(const Checkpoint& source, const std::string& key);

/// Restores the source's config.json from that of an artifact in a layout. `base` is the original
/// quantization entry and `base_place` its path ("text_config.quantization_config", for example; by default
/// the top). If `base` came from `hf_quant_config`, the source's own file, or is null, no entry is written.
/// `beside_base` restores the others. Any other config is returned unchanged.
Json original_config(const Json& config, const Json& hf_quant_config);

/// The source's config.json with that quantization_config and no other, at its top or, where the source has
/// its entry there, in its text_config or the like; null: without any.
Json config_with_quantization(const Checkpoint& source, Json entry);
/// The same of a config.json.
Json with_quantization(Json config, Json entry);

/// The config.json of an artifact in a layout: `entry` at its top, with the source's entry under `base`,
/// where that was if not at the usual place, and what else was there. `base`: another than the source's.
Json config_with_layout(const Checkpoint& source, Json entry, const Json* base = nullptr);

/// Whether the source's KV cache is FP8. Throws Error where it is quantized in a way that not every dialect
/// has.
bool has_fp8_kv_cache(const Checkpoint& source);

}  // namespace twofour
