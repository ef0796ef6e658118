#pragma once
#include <optional>
#include <string>
#include <vector>

#include "formats/json.h"
#include "lib/checkpoint/checkpoint.h"
#include "lib/checkpoint/output_dialect.h"

namespace twofour {

/// What a config.json says of quantization, and where: "text_config.quantization_config", for example.
struct QuantizationEntry {
  const Json& value;
  std::string place;
};
/// The entry that counts; empty: there is none, or none that says anything.
std::optional<QuantizationEntry> quantization_entry(const Json& config);

/// Throws Error where config.json has an entry at its top and another in its text_config, or in another
/// config of a language model, as one can be kept, and where one stands deeper.
void refuse_entries_that_cannot_be_kept(const Checkpoint& source);

/// The source's quantization entry, from config.json or hf_quant_config.json; null where it has none.
Json source_quantization(const Checkpoint& source);

/// Where a key of that stands, for messages: "DIRECTORY/config.json: text_config.quantization_config.KEY",
/// for example, or "DIRECTORY/hf_quant_config.json: KEY".
std::string quantization_place(const Checkpoint& source, const std::string& key);

/// The config.json that an artifact in a layout had before: the entry under `base` is the entry again, at
/// `base_place` ("text_config.quantization_config", for example) if that is told, and none where that is
/// `hf_quant_config`, the source's own file, or null. What `beside_base` names stands beside it again. Any
/// other config stays as it is.
Json original_config(const Json& config, const Json& hf_quant_config);

/// The source's config.json with that quantization_config and no other, at its top or, where the source has
/// its entry there, in its text_config or the like; null: without any.
Json config_with_quantization(const Checkpoint& source, Json entry);

/// The config.json of an artifact in a layout: `entry` at its top, with the source's entry under `base`,
/// where that was if not at the usual place, and what else was there.
Json config_with_layout(const Checkpoint& source, Json entry);

/// Whether the source's KV cache is FP8. Throws Error where it is quantized in a way that not every dialect
/// has.
bool has_fp8_kv_cache(const Checkpoint& source);

/// What the source's configuration says, in the dialect it is converted to. Throws Error where the other
/// dialect has no words for it.
QuantizedConfig translate_config(const Checkpoint& source, const OutputDialect& to);

}  // namespace twofour
