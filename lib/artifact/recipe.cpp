#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "formats/error.h"
#include "formats/json.h"
#include "lib/artifact/recipe.h"

namespace twofour {
namespace {

Json pattern_texts(const std::vector<NamePattern>& patterns) {
  Json texts = Json::array();
  for (const NamePattern& p : patterns) texts.push_back(p.text());
  return texts;
}

/// Names and float32 bits, and what they mean.
Json kept_to_json(const FixedGlobalScales& kept) {
  Json bits = Json::object();
  for (const auto& [name, value] : kept.scales) bits[name] = fmt::format("{:08x}", value);
  return {{"divides", kept.divides}, {"bits", std::move(bits)}};
}

FixedGlobalScales kept_from_json(std::string_view where, const Json& json) {
  FixedGlobalScales kept;
  kept.divides = json.at("divides").get<bool>();
  for (const auto& [name, value] : json.at("bits").items()) {
    const auto text = value.get<std::string>();
    uint32_t bits = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), bits, 16);
    const auto scale = std::bit_cast<float>(bits);
    if (error != std::errc() || end != text.data() + text.size() || text.size() != 8 ||
        !std::isfinite(scale) || scale <= 0) {
      throw Error(fmt::format("{}: {}: expected the bits of a positive finite global scale, found {}", where,
                              name, json_quote(text)));
    }
    kept.scales.push_back({name, bits});
  }
  kept.sort();
  return kept;
}

const char* fold_name(Fold fold) {
  return fold == Fold::kStrict ? "strict" : fold == Fold::kAny ? "any" : "larger";
}

Json rule_to_json(const Rule& r) {
  Json json = {{"to", r.to},
               {"include", pattern_texts(r.selection.include)},
               {"exclude", pattern_texts(r.selection.exclude)},
               {"also", pattern_texts(r.selection.also)},
               {"fold", fold_name(r.fold)}};
  if (!r.pattern.empty()) json["pattern"] = r.pattern;
  if (!r.dialect.empty()) json["dialect"] = r.dialect;
  if (!r.granularity.empty()) json["granularity"] = r.granularity;
  if (!r.block.empty()) json["block"] = r.block;
  if (!r.scale_dtype.empty()) json["scale_dtype"] = r.scale_dtype;
  if (!r.odd_blocks.empty()) json["odd_blocks"] = r.odd_blocks;
  if (!r.exact.empty()) json["exact"] = r.exact;
  if (!r.arithmetic.empty()) json["arithmetic"] = r.arithmetic;
  if (!r.block_scale.empty()) json["block_scale"] = r.block_scale;
  if (!r.zero_block.empty()) json["zero_block"] = r.zero_block;
  if (!r.method.empty()) json["method"] = r.method;
  if (r.sweeps >= 0) json["sweeps"] = r.sweeps;
  if (!r.statistics_hash.empty()) json["statistics_xxh3_128"] = r.statistics_hash;
  if (!r.statistics_from.empty()) json["statistics_from"] = r.statistics_from;
  if (!r.statistics_input.empty()) json["statistics_input_xxh3_128"] = r.statistics_input;
  if (!r.mask_hash.empty()) json["masks_xxh3_128"] = r.mask_hash;
  if (!r.kept.scales.empty()) json["kept_global_scales"] = kept_to_json(r.kept);
  if (!r.input_scale.empty()) json["input_scale"] = r.input_scale;
  if (!r.input_scales.scales.empty()) json["input_scales"] = kept_to_json(r.input_scales);
  if (r.one_input_scale_a_layer) json["one_input_scale_a_layer"] = true;
  if (!r.selection.from_default) json["from_default"] = false;
  if (r.selection.draft_experts != DraftExperts::kByName)
    json["draft_experts"] = r.selection.draft_experts == DraftExperts::kKeep ? "keep" : "cast";
  for (const ModuleRole role : r.selection.roles) json["roles"].push_back(role_name(role));
  return json;
}

Rule rule_from_json(std::string_view where, const Json& json) {
  Rule r;
  r.to = json.at("to").get<std::string>();
  r.selection.include = parse_patterns(json.at("include").get<std::vector<std::string>>());
  r.selection.exclude = parse_patterns(json.at("exclude").get<std::vector<std::string>>());
  r.selection.also = parse_patterns(json.at("also").get<std::vector<std::string>>());
  const Json& fold = json.at("fold");
  r.fold = fold == "strict" ? Fold::kStrict : fold == "any" ? Fold::kAny : Fold::kLarger;
  r.pattern = json.value("pattern", "");
  r.dialect = json.value("dialect", "");
  r.granularity = json.value("granularity", "");
  r.arithmetic = json.value("arithmetic", "");
  r.block_scale = json.value("block_scale", "");
  r.zero_block = json.value("zero_block", "");
  r.method = json.value("method", "");
  r.sweeps = json.value("sweeps", -1);
  r.statistics_hash = json.value("statistics_xxh3_128", "");
  r.statistics_from = json.value("statistics_from", "");
  r.statistics_input = json.value("statistics_input_xxh3_128", "");
  r.mask_hash = json.value("masks_xxh3_128", "");
  if (json.contains("kept_global_scales")) r.kept = kept_from_json(where, json["kept_global_scales"]);
  r.block = json.value("block", "");
  r.scale_dtype = json.value("scale_dtype", "");
  r.odd_blocks = json.value("odd_blocks", "");
  r.exact = json.value("exact", "");
  r.input_scale = json.value("input_scale", "");
  if (json.contains("input_scales")) r.input_scales = kept_from_json(where, json["input_scales"]);
  r.one_input_scale_a_layer = json.value("one_input_scale_a_layer", false);
  r.selection.from_default = json.value("from_default", true);
  r.selection.draft_experts = parse_draft_experts(json.value("draft_experts", ""));
  for (const Json& role : json.value("roles", Json::array())) {
    const auto known = role_from_name(role.get<std::string>());
    if (!known)
      throw Error(fmt::format("{}: roles: expected a role of modules, found {}", where, role.dump()));
    r.selection.roles.push_back(*known);
  }
  return r;
}

/// Opens a file for the rules that were made with one.
template <class File>
void open_file_of_rules(Recipe& recipe, const std::filesystem::path& file, const char* option,
                        const char* what, std::string Rule::*hash, std::shared_ptr<const File> Rule::*to) {
  std::shared_ptr<const File> opened;
  for (Rule& r : recipe.rules) {
    if ((r.*hash).empty()) continue;
    if (file.empty()) {
      throw Error(
          fmt::format("{}: expected the file of {} that weights were chosen by, XXH3-128 {}, found none",
                      option, what, r.*hash));
    }
    if (!opened) opened = std::make_shared<const File>(File::open(file));
    if (const std::string found = opened->hash().hex(); found != r.*hash) {
      throw Error(fmt::format("{}: expected the file of {} with XXH3-128 {}, found {}", file.string(), what,
                              r.*hash, found));
    }
    r.*to = opened;
  }
  if (!opened && !file.empty()) {
    throw Error(fmt::format("{}: expected none, for no weights were chosen by {}, found {}", option, what,
                            file.string()));
  }
}

}  // namespace

void open_statistics(Recipe& recipe, const std::filesystem::path& file) {
  open_file_of_rules(recipe, file, "--stats", "statistics", &Rule::statistics_hash, &Rule::statistics);
}

void open_masks(Recipe& recipe, const std::filesystem::path& file) {
  open_file_of_rules(recipe, file, "--mask", "masks", &Rule::mask_hash, &Rule::masks);
}

DraftExperts parse_draft_experts(std::string_view word) {
  return word == "keep" ? DraftExperts::kKeep : word == "cast" ? DraftExperts::kCast : DraftExperts::kByName;
}

void FixedGlobalScales::sort() {
  std::sort(scales.begin(), scales.end(), [](const Scale& a, const Scale& b) { return a.name < b.name; });
}

const FixedGlobalScales::Scale* FixedGlobalScales::find(std::string_view name) const {
  const auto at = std::lower_bound(scales.begin(), scales.end(), name,
                                   [](const Scale& s, std::string_view n) { return s.name < n; });
  return at != scales.end() && at->name == name ? &*at : nullptr;
}

std::string Recipe::what() const {
  for (const Rule& rule : rules) {
    if (rule.to != rules[0].to) return "mixed";
  }
  if (rules.empty()) return edit ? std::string(edit.name()) : "mixed";
  return rules[0].to;
}

Json recipe_to_json(const Recipe& r) {
  Json rules = Json::array();
  for (const Rule& rule : r.rules) rules.push_back(rule_to_json(rule));
  Json json = {{"rules", std::move(rules)}, {"max_shard_size", r.max_shard_size}};
  if (!r.dialect.empty()) json["dialect"] = r.dialect;
  if (r.zero_points != ZeroPoints::kAsStated) json["zero_points"] = zero_points_word(r.zero_points);
  if (r.edit) json["edit"] = edit_to_json(r.edit);
  return json;
}

Recipe recipe_from_json(std::string_view where, const Json& json) {
  try {
    Recipe r;
    r.rules.clear();
    if (json.contains("to")) {
      r.rules.push_back(rule_from_json(where, json));
    } else {
      for (const Json& rule : json.at("rules")) r.rules.push_back(rule_from_json(where, rule));
    }
    r.dialect = json.value("dialect", "");
    r.zero_points = parse_zero_points(json.value("zero_points", ""));
    r.max_shard_size = whole_number<uint64_t>(json.at("max_shard_size"));
    if (json.contains("edit")) r.edit = edit_from_json(json.at("edit"));
    return r;
  } catch (const Json::exception&) {
    throw Error(fmt::format("{}: expected a recipe, found {}", where, json_line(json).substr(0, 80)));
  }
}

uint64_t parse_size(const std::string& text) {
  size_t digits = 0;
  while (digits < text.size() &&
         (std::isdigit(static_cast<unsigned char>(text[digits])) || text[digits] == '.'))
    ++digits;
  const std::string unit = text.substr(digits);
  double factor = 0;
  for (const auto& [name, value] :
       {std::pair{"", 1.0}, {"B", 1.0}, {"kB", 1e3}, {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12}}) {
    if (unit == name) factor = value;
  }
  const bool is_number = digits > 0 && digits < 16 && std::count(text.begin(), text.end(), '.') <= 1;
  const double number = is_number ? std::strtod(text.substr(0, digits).c_str(), nullptr) : 0;
  if (factor == 0 || number * factor < 1 || number * factor > 1e18) {
    throw Error(fmt::format("expected a size such as 5GB or 500MB, found '{}'", text));
  }
  return static_cast<uint64_t>(number * factor);
}

}  // namespace twofour
