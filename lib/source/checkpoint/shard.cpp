#include "lib/source/checkpoint/shard.h"

#include <algorithm>
#include <cctype>

#include "formats/error.h"
#include "formats/json.h"
#include "lib/base/names/arrangement_words.h"

namespace twofour {

bool DescribedCodes::has(std::string_view module) const {
  const auto is_in = [](const std::vector<std::string>& names, std::string_view name) {
    return std::binary_search(names.begin(), names.end(), name, std::less<>());
  };
  if (all || is_in(shortened, module)) return true;
  constexpr int kMostParts = 32;  // largest number of parts of a module's name
  for (int i = 0; i < kMostParts; ++i) {
    if (is_in(modules, module)) return true;
    const size_t dot = module.find('.');
    if (dot == module.npos) return false;
    module.remove_prefix(dot + 1);
  }
  return false;
}

namespace {

/// Returns a module's name, "model.layers.0.mlp.up_proj", without endings that an entry may add to it.
std::string described_module(std::string name) {
  for (const char* suffix : {".weight", "."}) {
    if (name.ends_with(suffix)) name.resize(name.size() - std::string_view(suffix).size());
  }
  return name;
}

/// The codes that an entry of __metadata__ describes. The only form that names modules is ComfyUI's:
/// {"layers": {MODULE: {"format": ...}}}; any other form covers the whole file. Source: Comfy-Org/ComfyUI,
/// comfy/utils.py, convert_old_quants.
DescribedCodes described_codes(const std::string& key, const std::string& value, size_t tensors) {
  DescribedCodes described{json_quote_short(key)};
  described.key = described.key.substr(1, described.key.size() - 2);
  // The modules' names take no more memory than the tensors' names may.
  if (value.size() > 4096 + 256 * tensors) return described;
  try {
    const Json json = parse_json(key, value);
    if (!json.is_object()) return described;
    const auto layers = json.find("layers");
    for (const auto& [word, configured] : json.items()) {
      if (word != "layers" && word != "format_version") return described;
    }
    if (layers == json.end() || !layers->is_object()) return described;
    DescribedCodes named{described.key, false};
    for (const auto& [text, words] : layers->items()) {
      if (text.find_first_of("*?[(") != text.npos) return described;  // a pattern
      const std::string module = described_module(text);
      named.modules.push_back(module);
      constexpr int kMostPrefixes = 3;  // prefixes are like "module.", "base_model.model."
      std::string_view rest = module;
      for (int i = 0; i < kMostPrefixes && rest.find('.') != rest.npos; ++i) {
        rest.remove_prefix(rest.find('.') + 1);
        named.shortened.emplace_back(rest);
      }
    }
    std::sort(named.modules.begin(), named.modules.end());
    std::sort(named.shortened.begin(), named.shortened.end());
    return named;
  } catch (const Error&) {
    return described;  // the text has no known form
  }
}

/// True if an entry of __metadata__ describes codes. Its key shows it, or the configuration that it quotes.
bool is_on_codes(std::string key, const std::string& value) {
  if (!key.starts_with("twofour.") && names_arrangement(key, value)) return true;
  for (char& c : key) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  // Keys with these endings do not describe the bytes.
  for (const char* end : {"_by", "_version", "_date", "_time", "_at", "_from", "_with", "_tool", "_url"}) {
    if (key.ends_with(end)) return false;
  }
  constexpr const char* kWords[] = {"quant", "comfy", "hadamard", "rotat"};
  if (std::ranges::any_of(kWords, [&](const char* word) { return key.find(word) != key.npos; })) return true;
  constexpr const char* kQuoted[] = {"\"quantization_config\"", "\"quant_method\"", "\"quant_algo\"",
                                     "\"_type\""};
  return std::any_of(std::begin(kQuoted), std::end(kQuoted),
                     [&](const char* word) { return value.find(word) != value.npos; });
}

}  // namespace

void digest_metadata(Shard& shard) {
  for (const auto& [key, value] : shard.metadata) {
    if (is_on_codes(key, value)) shard.described.push_back(described_codes(key, value, shard.tensor_count));
  }
  std::erase_if(shard.metadata, [](const auto& entry) {
    return (entry.first != "format" && entry.first != "twofour.layout") || entry.second.size() > 64;
  });
}

}  // namespace twofour
