#include "lib/look/inspect/model_card.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "formats/error.h"
#include "formats/json.h"
#include "lib/base/io/file.h"
#include "lib/base/io/file_states.h"
#include "lib/look/inspect/readme_text.h"
#include "lib/recipe/artifact/layout_names.h"
#include "lib/recipe/artifact/manifest.h"
#include "lib/recipe/artifact/yaml.h"
#include "lib/source/checkpoint/checkpoint.h"

namespace twofour {

namespace fs = std::filesystem;

namespace {

/// Matrices that were made by the same method.
struct Made {
  size_t matrices = 0;
  std::map<std::string, std::vector<double>> figures;  ///< by figure name, one number for each matrix
};

struct Facts {
  Json json;                         ///< twofour.json without its modules and tensors
  std::map<std::string, Made> made;  ///< by layout or method
  ArtifactFacts readme;              ///< facts that README.md has, too
};

/// The size in bytes of a tensor that a manifest lists; 0 for an unknown type.
uint64_t bytes_of(const Json& tensor) {
  const auto dtype = dtype_from_name(tensor.at("dtype").get<std::string>());
  uint64_t bits = dtype ? static_cast<uint64_t>(dtype_bits(*dtype)) : 0;
  for (const Json& dimension : tensor.at("shape")) bits *= whole_number<uint64_t>(dimension);
  return bits / 8;
}

Facts read_facts(const fs::path& artifact) {
  const fs::path path = artifact / kManifestName;
  if (is_absent(path)) {
    refuse_unfinished(artifact);
    throw Error(
        fmt::format("{}: expected a twofour artifact, found no {}", artifact.string(), kManifestName));
  }
  Facts facts;
  const auto keep = [&](Json& object) {
    if (object.contains("codes_xxh3_128") || object.contains("weights_xxh3_128") || object.contains("module"))
      return false;
    if (object.contains("gated")) {
      facts.readme.take(object);
      Made& made = facts.made[object.at("layout").get<std::string>()];
      ++made.matrices;
      const auto quality = object.find("quality");
      if (quality == object.end()) return false;
      for (const auto& [name, value] : quality->items()) {
        if (value.is_number()) made.figures[name].push_back(value.get<double>());
      }
      return false;
    }
    if (!object.contains("xxh3_128")) return true;
    facts.readme.bytes += bytes_of(object);
    return false;
  };
  try {
    ManifestText text = parse_manifest_text(path, Checkpoint::open(artifact).tensors().size(), keep);
    if (!text.integrity_error.empty())
      throw Error(fmt::format("{}: {}", path.string(), text.integrity_error));
    facts.readme.take(text.recipe);
    facts.json = std::move(text.json);
    for (const char* key : {"tool", "source", "files"}) facts.json.at(key);
  } catch (const Json::exception&) {
    throw Error(fmt::format("{}: expected a twofour manifest, found something else", path.string()));
  }
  return facts;
}

/// The value of a key in the front matter of a README.md. Empty if it is not a single word.
std::string front_matter_value(std::string text, const std::string& key) {
  std::erase(text, '\r');
  if (!text.starts_with("---\n")) return {};
  const size_t end = text.find("\n---", 3);
  const size_t line = text.find("\n" + key + ": ", 3);
  if (end == text.npos || line == text.npos || line > end) return {};
  const size_t value = line + key.size() + 3;
  try {
    const YamlNode node = parse_yaml("README.md", text.substr(value, text.find('\n', value) - value));
    return node.kind == YamlNode::Kind::kScalar ? node.text : std::string();
  } catch (const Error&) {
    return {};
  }
}

/// `text` as a YAML string in double quotes and in ASCII. JSON's escapes do not suffice. JSON does not escape
/// DEL, nor separators and controls above ASCII, which YAML forbids or takes for ends of lines.
std::string yaml_quote(const std::string& text) {
  const std::string json = json_quote(text);
  std::string quoted;
  for (size_t i = 0; i < json.size();) {
    const auto lead = static_cast<unsigned char>(json[i]);
    if (lead < 0x80) {
      quoted += lead == 0x7F ? "\\x7F" : json.substr(i, 1);
      ++i;
      continue;
    }
    const int bytes = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
    uint32_t code = lead & (0x7Fu >> bytes);
    for (size_t end = i++ + static_cast<size_t>(bytes); i < end; ++i)
      code = code << 6 | (static_cast<unsigned char>(json[i]) & 0x3Fu);
    quoted += fmt::format("\\U{:08X}", code);
  }
  return quoted;
}

/// `text` in one line of Markdown that displays it unchanged.
std::string markdown_text(const std::string& text) {
  std::string shown;
  for (const char c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      shown += ' ';
      continue;
    }
    if (std::string_view("\\`*_[]<>|#&~$!").find(c) != std::string_view::npos) shown += '\\';
    shown += c;
  }
  return shown;
}

/// The length of the longest run of backticks.
size_t longest_run(const std::string& text) {
  size_t longest = 0, run = 0;
  for (const char c : text) longest = std::max(longest, run = c == '`' ? run + 1 : 0);
  return longest;
}

/// `text` as Markdown code, for a cell of a table.
std::string code(const std::string& text) {
  std::string shown;
  for (const char c : text) {
    if (c == '|') shown += '\\';
    shown += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  const std::string fence(longest_run(text) + 1, '`');
  const char* space = fence.size() > 1 ? " " : "";
  return fence + space + shown + space + fence;
}

/// A rule without its empty settings. Each long list is replaced by its length.
Json short_rule(const Json& rule) {
  constexpr size_t kLongest = 32;
  Json configured = Json::object();
  for (const auto& [key, value] : rule.items()) {
    if ((value.is_array() || value.is_object()) && value.empty()) continue;
    const bool is_long = (value.is_array() || value.is_object()) && value.size() > kLongest;
    configured[key] = is_long ? Json(fmt::format("{} entries", value.size())) : value;
  }
  return configured;
}

std::string recipe_text(const Json& recipe) {
  std::string rules;
  if (recipe.contains("rules")) {
    for (const Json& rule : recipe.at("rules")) rules += short_rule(rule).dump() + "\n";
  }
  Json rest = short_rule(recipe);
  rest.erase("rules");
  if (!rest.empty()) rules += rest.dump() + "\n";
  const std::string fence(std::max<size_t>(3, longest_run(rules) + 1), '`');
  return fmt::format("{}json\n{}{}\n", fence, rules, fence);
}

std::string figure_text(const std::string& name, double value) {
  const bool is_share = name == "retained_energy" || name == "relative_error" || name == "tied_share";
  if (is_share) return fmt::format("{:.3f} %", 100 * value);
  return name == "snr_db" ? fmt::format("{:.2f} dB", value) : fmt::format("{:.6g}", value);
}

std::string figures_text(const std::map<std::string, Made>& all) {
  static const std::map<std::string, std::string> kNames = {{"retained_energy", "retained energy"},
                                                            {"relative_error", "relative error"},
                                                            {"snr_db", "SNR"},
                                                            {"cosine", "cosine"},
                                                            {"tied_share", "decided by ties"}};
  std::string rows;
  for (const auto& [layout, made] : all) {
    for (auto [name, values] : made.figures) {
      std::sort(values.begin(), values.end());
      const auto known = kNames.find(name);
      rows += fmt::format("| {} | {} | {} | {} | {} | {} |\n", code(layout),
                          known == kNames.end() ? code(name) : known->second, values.size(),
                          figure_text(name, values.front()), figure_text(name, values[values.size() / 2]),
                          figure_text(name, values.back()));
    }
  }
  if (rows.empty()) return {};
  return "## Figures\nOf each matrix, against the weights that it was made from.\n\n"
         "| became | figure | matrices | smallest | median | largest |\n"
         "| --- | --- | --- | --- | --- | --- |\n" +
         rows + "\n";
}

/// Tags by which the Hub finds the model.
std::set<std::string> tags(const Facts& facts) {
  std::set<std::string> found = {"twofour"};
  for (const auto& [name, made] : facts.made) {
    if (is_layout(name) || name == "quantize" || name == "prune") found.insert("nvfp4");
    if (name != "quantize" && name != "prune" && name != "keep") found.insert(name);
  }
  const Json& recipe = facts.json.at("recipe");
  if (!recipe.contains("rules")) return found;
  for (const Json& rule : recipe.at("rules")) {
    if (rule.contains("pattern") && rule.at("pattern").is_string())
      found.insert(rule.at("pattern").get<std::string>());
  }
  return found;
}

std::string front_matter(const Facts& facts, const fs::path& artifact, const CardOptions& options) {
  std::string text = "---\n";
  const auto add = [&](const char* key, const std::string& value) {
    if (!value.empty()) text += fmt::format("{}: {}\n", key, yaml_quote(value));
  };
  add("base_model", options.base_model);
  if (!options.base_model.empty()) text += "base_model_relation: quantized\n";
  const fs::path readme = artifact / "README.md";
  if (!is_absent(readme)) {
    const std::string source = read_text(readme);
    for (const char* key : {"license", "license_name", "license_link"})
      add(key, front_matter_value(source, key));
  }
  add("quantized_by", options.quantized_by);
  text += "tags:\n";
  for (const std::string& tag : tags(facts)) text += fmt::format("- {}\n", yaml_quote(tag));
  return text + "---\n\n";
}

std::string hashes_text(const Json& json) {
  std::string text =
      "## Hashes\nXXH3-128; of weight files, of what is before the tensors, and of twofour.json, of what is "
      "before its hash.\n\n"
      "| file | hash |\n| --- | --- |\n";
  for (const auto& [name, hash] : json.at("files").items())
    text += fmt::format("| {} | {} |\n", code(name), code(hash.get<std::string>()));
  text += fmt::format("| {} | {} |\n\n", code(kManifestName),
                      code(json.at("manifest_xxh3_128").get<std::string>()));
  text += "Of the source:\n\n| file | bytes | hash |\n| --- | --- | --- |\n";
  const Json& source = json.at("source");
  for (const Json& file : source.at("files")) {
    text += fmt::format("| {} | {} | {} |\n", code(file.at("name").get<std::string>()),
                        whole_number<uint64_t>(file.at("bytes")),
                        code(file.at("header_xxh3_128").get<std::string>()));
  }
  return text + fmt::format("\nAll that was read of it: {}.\n",
                            code(source.at("content_xxh3_128").get<std::string>()));
}

}  // namespace

std::string model_card(const fs::path& path, const CardOptions& options) {
  const FileStates states({path});
  Facts facts = read_facts(path);
  const Checkpoint artifact = Checkpoint::open(path);
  facts.readme.take_config(artifact.config(), artifact.hf_quant_config());
  std::vector<std::string> counts;
  std::vector<std::string> names;
  for (const auto& [name, made] : facts.made) {
    names.push_back(name);
    counts.push_back(
        fmt::format("{} {} in {}", made.matrices, made.matrices == 1 ? "matrix" : "matrices", code(name)));
  }
  const std::string what = fmt::format("{}", fmt::join(names, ", "));
  const std::string base = options.base_model.substr(options.base_model.rfind('/') + 1);
  try {
    const Json& tool = facts.json.at("tool");
    for (const Json& file : facts.json.at("source").at("files"))
      facts.readme.source_bytes += whole_number<uint64_t>(file.at("bytes"));
    std::string text =
        front_matter(facts, path, options) +
        fmt::format("# {}{}{}\n\n", base.empty() ? "Artifact" : markdown_text(base), what.empty() ? "" : ": ",
                    markdown_text(what)) +
        fmt::format("Made{}{} by twofour {} ({}): {}{}{:.3g} GB of tensors, from {:.3g} GB.\n\n",
                    options.base_model.empty() ? "" : " from ", markdown_text(options.base_model),
                    markdown_text(tool.at("version").get<std::string>()),
                    markdown_text(tool.at("commit").get<std::string>()), fmt::join(counts, ", "),
                    counts.empty() ? "" : ", ", static_cast<double>(facts.readme.bytes) / 1e9,
                    static_cast<double>(facts.readme.source_bytes) / 1e9) +
        made_text(facts.readme) + (facts.made.empty() ? "" : "\n") + "## Recipe\n" +
        recipe_text(facts.json.at("recipe")) + "\n" + figures_text(facts.made) +
        "## Loading\nPATH is the artifact's directory.\n\n" + loading_text(facts.readme) + "\n## Proof\n" +
        proof_text(facts.readme) + "\n" + hashes_text(facts.json);
    states.check_unchanged();
    return text;
  } catch (const Json::exception&) {
    throw Error(fmt::format("{}: expected a twofour manifest, found something else",
                            (path / kManifestName).string()));
  }
}

}  // namespace twofour
