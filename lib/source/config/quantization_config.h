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
/// The entry that applies; nullopt if a config has none or it is empty.
std::optional<QuantizationEntry> quantization_entry(const Json& config);

/// The names of the files that AutoGPTQ and AutoAWQ write beside config.json, or in place of its entry.
inline constexpr const char* kSideConfigs[] = {"quantize_config.json", "quant_config.json"};
/// A file of kSideConfigs: a JSON object with `quant_method`.
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

/// The storage of weights as a quantization entry states it for all modules together.
struct StatedStorage {
  std::vector<std::pair<int64_t, int64_t>> blocks;  ///< block sizes of FP8, in rows and columns
  std::vector<std::string> unread_blocks;           ///< block sizes that cannot be read, as written
  std::vector<int64_t> group_sizes;                 ///< group sizes of integer formats
  std::set<int64_t> bits;                           ///< bits of integer formats
  std::string method;                               ///< result of quantization_method()
  std::string format;                               ///< checkpoint_format, version or packing_format
  std::string other_format;                         ///< another key's value that contradicts it
  std::string fp8_format;                           ///< fmt: "e4m3"
  bool is_unlisted = false;                         ///< no reader knows the method
  bool has_order = false;                           ///< GPTQ's desc_act: a g_idx beside the codes
  bool by_gptqmodel = false;                        ///< GPTQ: meta.quantizer names GPTQModel
};
StatedStorage stated_storage(const Json& quantization);
/// True if a stated number may be a size: it is so small that no product of two sizes overflows.
bool is_stated_size(int64_t stated);

/// Throws Error if config.json has one entry at its top and another in a language model's config, such as
/// text_config: an output can have only one entry. Also throws Error if an entry is nested deeper than that.
void refuse_entries_that_cannot_be_kept(const Checkpoint& source);

/// Returns the source's quantization entry from config.json or hf_quant_config.json; null if neither has one.
Json source_quantization(const Checkpoint& source);

/// Returns the quantization entry of the configs by which the source's values are read; null if they have
/// none.
Json quantization_of_values(const Checkpoint& source);

/// Returns the place of a key in the source's quantization entry, for messages: "DIRECTORY/config.json:
/// text_config.quantization_config.KEY", for example, or "DIRECTORY/hf_quant_config.json: KEY".
std::string quantization_place(const Checkpoint& source, const std::string& key);

/// Restores the source's config.json from the config.json of an artifact in a layout. The layout's entry
/// holds the source's quantization entry in `base`, its path in `base_place`
/// ("text_config.quantization_config", for example; by default the top of config.json), and the source's
/// other entries in `beside_base`. If `base` is null or equals `hf_quant_config`, the source's own file, it
/// is not written into config.json. A config without a layout's entry is returned unchanged.
Json original_config(const Json& config, const Json& hf_quant_config);

/// Returns the source's config.json with `entry` as its only quantization entry. The entry is where the
/// source has its own (in text_config, for example), otherwise at the top. null: the result has no entry.
Json config_with_quantization(const Checkpoint& source, Json entry);
/// Returns `config`, a config.json, with `entry` as its only quantization entry, as
/// config_with_quantization() does.
Json with_quantization(Json config, Json entry);

/// Returns the config.json of an artifact in a layout, with `entry` at its top. Under `base` the entry holds
/// the source's entry or, if it is given, `*base`. It also holds the path of the source's entry, if that is
/// not the usual one, and the source's other entries.
Json config_with_layout(const Checkpoint& source, Json entry, const Json* base = nullptr);

/// True if the source's KV cache is FP8. Throws Error if the cache is quantized in a way that not every
/// dialect can express.
bool has_fp8_kv_cache(const Checkpoint& source);

}  // namespace twofour
