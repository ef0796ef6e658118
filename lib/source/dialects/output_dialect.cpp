#include "lib/source/dialects/output_dialect.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "formats/error.h"
#include "formats/module_roles.h"
#include "lib/base/findings/options.h"
#include "lib/base/names/config_pattern.h"
#include "lib/source/config/model_config.h"
#include "lib/source/config/quantization_config.h"
#include "lib/source/dialects/dialect_rows.h"

namespace twofour {

const Nvfp4Dialect* single_nvfp4_dialect(std::string_view name) {
  const auto all = nvfp4_dialects();
  return &*std::find_if(all.begin(), all.end(), [&](auto& d) { return d.name == name && !d.stacked; });
}

std::vector<int64_t> two_axis_scale_shape(int64_t n, int64_t k, const Scheme& s) {
  if (s.granularity == Granularity::kRow) return {n, 1};
  return {count_blocks(n, s.rows), count_blocks(k, s.cols)};
}

void WrittenModel::add(std::string name, const Scheme& scheme, Json entry) {
  const auto at = std::find(entries.begin(), entries.end(), entry);
  modules.push_back({std::move(name), static_cast<size_t>(at - entries.begin())});
  if (at != entries.end()) return;
  entries.push_back(std::move(entry));
  schemes.push_back(scheme);
}

std::vector<std::string> WrittenModel::heads() const {
  std::vector<std::string> names;
  for (const WrittenModule& m : modules) {
    if (m.entry && is_head(m.name)) names.push_back(m.name);
  }
  return names;
}

std::vector<std::string> OutputDialect::patterns(const std::vector<std::string>& globs) const {
  return excludes_by_glob ? globs : globs_to_regexes(globs);
}

std::span<const OutputDialect> output_dialects() {
  static const OutputDialect all[] = {modelopt_dialect(), compressed_tensors_dialect(), deepseek_dialect(),
                                      deepseek_v4_dialect()};
  return all;
}

namespace {

/// Returns quant_method as the source states it; "" if it states none.
std::string quant_method(const Checkpoint& source) {
  const auto entry = quantization_entry(source.config());
  const Json named = entry && entry->value.is_object() ? entry->value.value("quant_method", Json()) : Json();
  return named.is_string() ? named.get<std::string>() : "";
}

}  // namespace

bool is_foreign(const Checkpoint& source) {
  return !quant_method(source).empty() && source_dialect(source) == nullptr;
}

const OutputDialect* source_dialect(const Checkpoint& source) {
  const auto row = [](std::string_view name) { return &output_dialect(name, false); };
  if (!quantization_entry(source.config()) && source.hf_quant_config().is_object()) return row("modelopt");
  const std::string method = quant_method(source);
  if (method == "modelopt") return row("modelopt");
  if (method == "compressed-tensors") return row("compressed-tensors");
  if (method != "fp8") return nullptr;
  const auto types = model_settings(source.config(), "model_type");
  const bool v4 = std::any_of(types.begin(), types.end(), [](const Json* type) {
    return type->is_string() && type->get<std::string>().starts_with("deepseek_v4");
  });
  return row(v4 ? "deepseek-v4" : "deepseek");
}

std::vector<std::string> output_dialect_names(bool nvfp4_only) {
  std::vector<std::string> names;
  for (const OutputDialect& d : output_dialects()) {
    if (d.nvfp4 != nullptr || !nvfp4_only) names.emplace_back(d.name);
  }
  return names;
}

const OutputDialect& output_dialect(std::string_view name, bool with_nvfp4) {
  for (const OutputDialect& d : output_dialects()) {
    if (d.name == name && (d.nvfp4 != nullptr || !with_nvfp4)) return d;
  }
  throw Error(fmt::format("{}: expected one of {}, found '{}'", options::kDialect,
                          fmt::join(output_dialect_names(with_nvfp4), ", "), name));
}

std::map<std::string, std::string> config_texts(const Checkpoint& source, ConfigEntries entries) {
  Json config = config_with_quantization(source, std::move(entries.quantization_config));
  for (const auto& [key, value] : entries.settings.items()) {
    if (value.is_null()) {
      config.erase(key);
    } else {
      config[key] = value;
    }
  }
  std::map<std::string, std::string> texts = {{"config.json", format_json(config)}};
  if (!entries.hf_quant_config.is_null())
    texts["hf_quant_config.json"] = format_json(entries.hf_quant_config);
  return texts;
}

}  // namespace twofour
