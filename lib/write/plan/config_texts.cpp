#include "lib/write/plan/config_texts.h"

#include <fmt/format.h>

#include "formats/json.h"
#include "lib/recipe/artifact/layout_names.h"
#include "lib/source/config/quantization_config.h"

namespace twofour {
namespace {

/// Adds names to a list of modules that are not quantized, and removes them from lists of quantized modules.
void leave_unquantized(Json& entry, const char* key, const std::vector<std::string>& names) {
  if (!entry.is_object()) return;
  if (!entry.contains(key) || !entry[key].is_array()) entry[key] = Json::array();
  for (const std::string& name : names) {
    entry[key].push_back(name);
    if (entry.contains("quantized_layers") && entry["quantized_layers"].is_object())
      entry["quantized_layers"].erase(name);
  }
}

}  // namespace

std::map<std::string, std::string> bf16_texts(const Checkpoint& source,
                                              const std::vector<std::string>& names) {
  if (names.size() == source.nvfp4_modules().size()) {
    return {{"config.json", format_json(config_with_quantization(source, nullptr))}};
  }
  Json entry = source_quantization(source), file = source.hf_quant_config();
  // If config.json has no entry, the entry of hf_quant_config.json stays in that file.
  if (entry == file) entry = nullptr;
  std::map<std::string, std::string> texts;
  leave_unquantized(entry, "ignore", names);
  texts["config.json"] = format_json(config_with_quantization(source, entry));
  if (file.is_object() && file.contains("quantization")) {
    leave_unquantized(file["quantization"], "exclude_modules", names);
    texts["hf_quant_config.json"] = format_json(file);
  }
  return texts;
}

std::map<std::string, std::string> original_texts(const Checkpoint& source) {
  std::map<std::string, std::string> texts;
  if (source.config().is_object()) texts["config.json"] = format_json(source.config());
  if (source.hf_quant_config().is_object())
    texts["hf_quant_config.json"] = format_json(source.hf_quant_config());
  for (const auto& [name, text] : source.config_texts()) texts[name] = text;
  return texts;
}

Json layout_group_to_json(const LayoutGroup& group) {
  return {{"layout", group.layout}, {"pattern", group.pattern}, {"modules", group.modules}};
}

std::string layout_config_text(const Checkpoint& source, const std::vector<LayoutGroup>& groups,
                               bool names_import, const Json* base) {
  Json entry = {{"quant_method", "twofour"}};
  if (names_import) entry["import"] = kTransformersImport;
  if (groups.size() == 1) {
    entry.update(layout_group_to_json(groups[0]));
  } else {
    entry["layout"] = kMixedLayout;
    Json& all = entry["groups"] = Json::array();
    for (const LayoutGroup& group : groups) all.push_back(layout_group_to_json(group));
  }
  return format_json(config_with_layout(source, std::move(entry), base));
}

std::string artifact_index(const Plan& plan) {
  std::map<std::string_view, std::string_view> files;
  for (const OutputTensor& t : plan.tensors) files[t.info.name] = plan.files[t.file].name;
  std::string text = fmt::format(
      "{{\n  \"metadata\": {{\n    \"total_size\": {}\n  }},\n  \"weight_map\": {{", plan.data_bytes);
  for (auto it = files.begin(); it != files.end(); ++it) {
    text += fmt::format("{}\n    {}: {}", it == files.begin() ? "" : ",", json_quote(it->first),
                        json_quote(it->second));
  }
  return text + "\n  }\n}\n";
}

std::set<std::string> artifact_files(const Plan& plan) {
  std::set<std::string> files{kIndexName, kManifestName};
  for (const OutputFile& file : plan.files) files.insert(file.name);
  for (const auto& [name, bytes] : plan.auxiliary_files) files.insert(name);
  for (const auto& [name, text] : plan.config.texts) files.insert(name);
  if (!plan.readme.empty()) files.insert(plan.readme);
  return files;
}

}  // namespace twofour
