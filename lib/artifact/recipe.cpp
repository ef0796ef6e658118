#include <fmt/format.h>

#include <bit>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "formats/error.h"
#include "formats/json.h"
#include "lib/artifact/manifest.h"

namespace twofour {
namespace {

Json pattern_texts(const std::vector<Pattern>& patterns) {
  Json texts = Json::array();
  for (const Pattern& p : patterns) texts.push_back(p.text());
  return texts;
}

/// Names and float32 bits, and what they mean.
Json kept_to_json(const KeptScales& kept) {
  Json bits = Json::object();
  for (const auto& [name, value] : kept.scales) bits[name] = fmt::format("{:08x}", value);
  return {{"divides", kept.divides}, {"bits", std::move(bits)}};
}

KeptScales kept_from_json(std::string_view where, const Json& json) {
  KeptScales kept;
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

}  // namespace

Json recipe_to_json(const Recipe& r) {
  Json json = {{"to", r.layout},
               {"include", pattern_texts(r.selection.include)},
               {"exclude", pattern_texts(r.selection.exclude)},
               {"also", pattern_texts(r.selection.also)},
               {"fold", r.fold == Fold::kLarger ? "larger" : "strict"},
               {"max_shard_size", r.max_shard_size}};
  if (!r.pattern.empty()) json["pattern"] = r.pattern;
  if (!r.dialect.empty()) json["dialect"] = r.dialect;
  if (!r.granularity.empty()) json["granularity"] = r.granularity;
  if (!r.arithmetic.empty()) json["arithmetic"] = r.arithmetic;
  if (!r.block_scale.empty()) json["block_scale"] = r.block_scale;
  if (!r.zero_block.empty()) json["zero_block"] = r.zero_block;
  if (!r.kept.scales.empty()) json["kept_global_scales"] = kept_to_json(r.kept);
  return json;
}

Recipe recipe_from_json(std::string_view where, const Json& json) {
  try {
    Recipe r;
    r.layout = json.at("to").get<std::string>();
    r.selection.include = parse_patterns(json.at("include").get<std::vector<std::string>>());
    r.selection.exclude = parse_patterns(json.at("exclude").get<std::vector<std::string>>());
    r.selection.also = parse_patterns(json.at("also").get<std::vector<std::string>>());
    r.fold = json.at("fold") == "strict" ? Fold::kStrict : Fold::kLarger;
    r.max_shard_size = json.at("max_shard_size").get_ref<const Json::number_unsigned_t&>();
    r.pattern = json.value("pattern", "");
    r.dialect = json.value("dialect", "");
    r.granularity = json.value("granularity", "");
    r.arithmetic = json.value("arithmetic", "");
    r.block_scale = json.value("block_scale", "");
    r.zero_block = json.value("zero_block", "");
    if (json.contains("kept_global_scales")) r.kept = kept_from_json(where, json["kept_global_scales"]);
    return r;
  } catch (const Json::exception&) {
    throw Error(fmt::format("{}: expected a recipe, found {}", where, json_line(json).substr(0, 80)));
  }
}

}  // namespace twofour
