#include "lib/artifact/recipe_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <iterator>
#include <optional>
#include <set>
#include <utility>

#include "formats/error.h"
#include "formats/layouts/layouts.h"
#include "lib/artifact/yaml.h"
#include "lib/dialects/output_dialect.h"

namespace twofour {
namespace {

/// What a rule may make, as far as other keys depend on it.
enum Target : unsigned { kKeep = 1, kBf16 = 2, kFp8 = 4, kMx = 8, kNvfp4 = 16, kLayout = 32 };
constexpr unsigned kEncoded = kNvfp4 | kLayout;  // layouts take NVFP4, and make it of other formats first
constexpr unsigned kSolved = kKeep | kEncoded;   // statistics choose their weights

struct TargetRow {
  std::string_view to;      ///< in a file
  std::string_view method;  ///< of Rule
  Target target;
};

std::vector<TargetRow> target_rows() {
  std::vector<TargetRow> rows = {{"keep", "keep", kKeep}, {"bf16", "bf16", kBf16},
                                 {"fp8", "fp8", kFp8},    {"mxfp8", "mxfp8", kMx},
                                 {"mxfp4", "mxfp4", kMx}, {"nvfp4", "quantize", kNvfp4}};
  for_each_layout([&]<class L>() { rows.push_back({L::name, L::name, kLayout}); });
  return rows;
}

std::string target_names(unsigned targets) {
  std::vector<std::string_view> names;
  for (const TargetRow& row : target_rows()) {
    if (row.target & targets) names.push_back(row.to);
  }
  return either(names);
}

/// A key of a rule that takes one of some words.
struct WordRow {
  const char* key;
  std::string Rule::*to;
  std::vector<std::string_view> words;
  unsigned with;  ///< Target that it goes with
  const char*
      otherwise;  ///< the word that stands for the default and leaves the rule as it is; nullptr: none
  const char* description;
};

const std::vector<WordRow>& word_rows() {
  static const std::vector<WordRow> rows = {
      {"granularity",
       &Rule::granularity,
       {"tensor", "row", "block"},
       kFp8,
       nullptr,
       "which weights share a scale (default: row; with dialect deepseek, block or scale_dtype: block)"},
      {"block",
       &Rule::block,
       {"128x128", "32x32", "1x128"},
       kFp8,
       nullptr,
       "rows and inputs of a block (default: 128x128)"},
      {"scale_dtype",
       &Rule::scale_dtype,
       {"f32", "bf16", "e8m0"},
       kFp8,
       nullptr,
       "type of the scales of blocks (default: f32; of DeepSeek-V4 e8m0 beside experts that stay in four "
       "bits)"},
      {"odd_blocks",
       &Rule::odd_blocks,
       {"refuse", "keep", "write"},
       kFp8,
       nullptr,
       "linears with N or K that is no multiple of 128, which engines refuse in blocks (default: refuse)"},
      {"exact",
       &Rule::exact,
       {"best", "strict", "off"},
       kFp8 | kMx | kEncoded,
       "best",
       "casts between formats: the best that the new one holds; refused if that loses anything; or sources "
       "taken as floats (default: best)"},
      {"arithmetic",
       &Rule::arithmetic,
       {"modelopt", "compressed-tensors"},
       kMx | kEncoded,
       nullptr,
       "rounding to reproduce bit for bit (default: the dialect's)"},
      {"block_scale",
       &Rule::block_scale,
       {"max", "mse", "four-over-six"},
       kEncoded,
       nullptr,
       "how the scale of 16 weights is chosen (default: max)"},
      {"zero_block",
       &Rule::zero_block,
       {"producer", "zero"},
       kEncoded,
       nullptr,
       "what is written if a block's scale rounds to zero (default: producer)"},
      {"pattern",
       &Rule::pattern,
       {"2:4", "4:8-paired"},
       kKeep | kNvfp4,
       nullptr,
       "prune; nvfp4 before quantizing, where 4:8-paired needs convert --stats; keep NVFP4 as it is "
       "(default: "
       "none)"},
  };
  return rows;
}

constexpr std::string_view kMethods[] = {"joint", "gptq", "sparsegpt", "wanda", "rtn", "magnitude"};
constexpr int kMostSweeps = 64;
constexpr std::string_view kDraftExperts[] = {"keep", "cast"};
constexpr const char* kInputScales = "keep, none, constant, constant=NUMBER, neighbours or from FILE";
constexpr const char* kMatches = "a role, a module's name, a glob, re: and a regular expression, or a list";

/// The multiplier of "constant=0.5"; nothing where it is not one.
std::optional<float> constant_scale(std::string_view text) {
  if (!text.starts_with("constant=")) return std::nullopt;
  text.remove_prefix(text.find('=') + 1);
  float scale = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), scale);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return std::isnormal(scale) && scale > 0 ? std::optional(scale) : std::nullopt;
}

std::string input_scale_of(const YamlPlace& place) {
  const std::string& given = place.text(kInputScales);
  if (given == "constant") return "constant=1.0";
  if (given.starts_with("from ")) return given;
  if (given != "keep" && given != "none" && given != "neighbours" && !constant_scale(given))
    place.expected(fmt::format("{}, the number positive and finite in float32", kInputScales));
  return given;
}

bool is_pattern(std::string_view text) {
  return text.starts_with("re:") || text.find_first_of("*?[") != text.npos;
}

/// Adds one element of `match`.
void add_match(const YamlPlace& place, Selection& selection, std::set<std::string>& known) {
  const std::string& text = place.text(kMatches);
  if (!known.insert(text).second)
    place.fail(fmt::format("expected each once, found {} again", json_quote_short(text)));
  if (const auto role = role_from_name(text)) {
    selection.roles.push_back(*role);
    return;
  }
  try {
    (is_pattern(text) ? selection.include : selection.also).emplace_back(text);
  } catch (const Error& e) {
    place.fail(e.what());
  }
}

/// A role goes by itself; a glob or expression restricts the default set, a name adds to it.
Selection read_match(const YamlPlace& place) {
  Selection selection;
  std::set<std::string> known;
  if (place.node.kind == YamlNode::Kind::kSequence) {
    if (place.node.items.empty()) place.fail("expected a role, name or pattern, found an empty list");
    for (size_t i = 0; i < place.node.items.size(); ++i) add_match(place.element(i), selection, known);
  } else {
    add_match(place, selection, known);
  }
  selection.from_default = !selection.include.empty();
  selection.is_match = true;
  return selection;
}

/// "rule 2 (experts, *.mlp.*)"
std::string label_of(size_t index, const Selection& s) {
  std::vector<std::string> names;
  for (const ModuleRole role : s.roles) names.emplace_back(role_name(role));
  for (const auto* patterns : {&s.include, &s.also}) {
    for (const NamePattern& p : *patterns) names.push_back(p.text());
  }
  std::string text = names[0];
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  if (names.size() > 1) text += fmt::format(" and {} more", names.size() - 1);
  return fmt::format("rule {} ({})", index + 1, text);
}

std::vector<std::string> names_of(const std::vector<RecipeKey>& keys) {
  std::vector<std::string> names;
  for (const RecipeKey& k : keys) names.push_back(k.key);
  return names;
}

/// Refuses a key that goes with other targets only.
void check_with(const YamlPlace& place, unsigned with, const TargetRow& target) {
  if (with & target.target) return;
  place.fail(fmt::format("expected with to: {} only, found with to: {}", target_names(with), target.to));
}

void read_words(const YamlPlace& place, const TargetRow& target, Rule& rule) {
  for (const WordRow& row : word_rows()) {
    const auto word = place.find(row.key);
    if (!word) continue;
    check_with(*word, row.with, target);
    const std::string& given = word->word(row.words);
    if (row.otherwise == nullptr || given != row.otherwise) rule.*row.to = given;
  }
}

void check_together(const YamlPlace& place, const TargetRow& target, Rule& rule) {
  for (const char* key : {"block", "scale_dtype"}) {
    const auto word = place.find(key);
    if (!word) continue;
    if (!rule.granularity.empty() && rule.granularity != "block")
      word->fail(fmt::format("expected with granularity: block only, found with {}", rule.granularity));
  }
  if (!rule.block.empty() || !rule.scale_dtype.empty()) rule.granularity = "block";
  if (const auto method = place.find("method")) {
    check_with(*method, kSolved, target);
    rule.method = method->word(kMethods);
    if (target.target == kKeep && rule.pattern.empty())
      method->fail("expected with pattern only, found without");
    const bool dense = rule.method == "gptq" || rule.method == "rtn";
    const bool has_pattern = !rule.pattern.empty() || !layout_pattern(target.method).empty();
    if (has_pattern == dense && (dense || rule.method != "magnitude"))
      method->expected(has_pattern ? "joint, sparsegpt, wanda or magnitude with pattern"
                                   : "gptq, rtn or magnitude without pattern");
  }
  if (const auto sweeps = place.find("sweeps")) {
    check_with(*sweeps, kSolved, target);
    rule.sweeps = static_cast<int>(sweeps->integer(0, kMostSweeps));
  }
}

/// What is pruned in its own format keeps all else.
void check_not_pruned(const YamlPlace& place, const Rule& rule) {
  if (rule.to == "prune") place.fail("expected without pattern with to: keep, found both");
}

Rule read_rule(const YamlPlace& place, size_t index) {
  place.check_map("a rule", names_of(rule_keys()));
  Rule rule;
  rule.selection = read_match(place.required("match"));
  const YamlPlace to = place.required("to");
  const auto rows = target_rows();
  const std::string& name = to.text(target_names(~0u));
  const auto target =
      std::find_if(rows.begin(), rows.end(), [&](const TargetRow& r) { return r.to == name; });
  if (target == rows.end()) to.expected(target_names(~0u));
  rule.to = target->method;
  read_words(place, *target, rule);
  check_together(place, *target, rule);
  if (target->target == kKeep && !rule.pattern.empty()) rule.to = "prune";
  if (const auto fold = place.find("fold")) {
    check_with(*fold, kLayout, *target);
    rule.fold = *parse_fold(fold->word(kFoldWords));
  }
  if (const auto drafts = place.find("draft_experts")) {
    check_with(*drafts, ~0u & ~kKeep, *target);
    rule.selection.draft_experts = parse_draft_experts(drafts->word(kDraftExperts));
  }
  if (const auto scale = place.find("input_scale")) {
    check_with(*scale, kKeep | kNvfp4, *target);
    check_not_pruned(*scale, rule);
    rule.input_scale = input_scale_of(*scale);
  }
  if (const auto one = place.find("one_input_scale_a_layer")) {
    check_with(*one, kKeep | kNvfp4, *target);
    check_not_pruned(*one, rule);
    rule.one_input_scale_a_layer = one->boolean();
  }
  rule.label = label_of(index, rule.selection);
  return rule;
}

uint64_t read_size(const YamlPlace& place) {
  try {
    return parse_size(place.text("a size such as 5GB or 500MB"));
  } catch (const Error& e) {
    const std::string problem = e.what();
    if (problem.starts_with("expected")) place.fail(problem);
    throw;
  }
}

void check_format(const YamlPlace& place) {
  if (place.node.kind == YamlNode::Kind::kScalar && !place.node.quoted &&
      place.node.text == std::to_string(kRecipeFormat)) {
    return;
  }
  place.expected(fmt::format("{}, the only format of recipes", kRecipeFormat));
}

}  // namespace

std::vector<RecipeKey> recipe_keys() {
  return {{"format", std::to_string(kRecipeFormat), "required"},
          {"dialect", either(output_dialect_names(false)),
           "names and configuration of the whole output (default: the source's)"},
          {"zero_points", either(zero_points_words()),
           "how zero points of INT4 are read, as --zero-points, which overrides it (default: as the config "
           "says)"},
          {"rules", "a list", "required, at least one; the first that takes a module decides"},
          {"max_shard_size", "5GB, 500MB", "as --max-shard-size, which overrides it (default: 5GB)"}};
}

std::vector<RecipeKey> rule_keys() {
  std::vector<RecipeKey> keys = {{"match", "see below", "required"}, {"to", target_names(~0u), "required"}};
  const auto with = [](unsigned targets) { return fmt::format("with to: {}: ", target_names(targets)); };
  for (const WordRow& row : word_rows())
    keys.push_back({row.key, either(row.words), with(row.with) + row.description});
  keys.push_back(
      {"method", either(kMethods),
       with(kSolved) +
           "how weights are chosen by convert --stats: joint or wanda with pattern or a layout that "
           "holds one, gptq or rtn without; magnitude leaves the statistics out (default: as quantize "
           "--method)"});
  keys.push_back({"sweeps", fmt::format("0 to {}", kMostSweeps),
                  with(kSolved) + "sweeps of descent (default: as quantize --sweeps)"});
  keys.push_back({"input_scale", kInputScales,
                  with(kKeep | kNvfp4) +
                      "scales of inputs, as --input-scale; NVFP4 that a rule to: nvfp4 matches keeps "
                      "those it has (default: as --input-scale)"});
  keys.push_back({"one_input_scale_a_layer", "true or false",
                  with(kKeep | kNvfp4) + "experts of a layer share the largest (default: false)"});
  keys.push_back({"draft_experts", either(kDraftExperts),
                  with(~0u & ~kKeep) +
                      "experts of layers that predict further tokens stay as they are, or are chosen as the "
                      "others are (default: chosen by name, not as experts)"});
  keys.push_back({"fold", either(kFoldWords), with(kLayout) + "as --fold (default: larger)"});
  return keys;
}

Recipe read_recipe(const std::string& where, std::string_view text) {
  const YamlNode document = parse_yaml(where, text);
  const YamlPlace top{where, "", document};
  if (document.kind == YamlNode::Kind::kNull) top.fail("expected a recipe, found nothing");
  top.check_map("a recipe", names_of(recipe_keys()));
  check_format(top.required("format"));
  Recipe recipe;
  recipe.rules.clear();
  const YamlPlace rules = top.required("rules");
  if (rules.node.kind != YamlNode::Kind::kSequence || rules.node.items.empty())
    rules.expected("a list of rules");
  if (rules.node.items.size() > kMostRules)
    rules.fail(fmt::format("expected at most {} rules, found {}", kMostRules, rules.node.items.size()));
  for (size_t i = 0; i < rules.node.items.size(); ++i) recipe.rules.push_back(read_rule(rules.element(i), i));
  const auto dialect = top.find("dialect");
  recipe.dialect = dialect ? dialect->word(output_dialect_names(false)) : "source";
  if (const auto zeros = top.find("zero_points"))
    recipe.zero_points = parse_zero_points(zeros->word(zero_points_words()));
  if (const auto size = top.find("max_shard_size")) recipe.max_shard_size = read_size(*size);
  return recipe;
}

std::string_view ShippedRecipe::summary() const {
  const std::string_view line = text.substr(0, text.find('\n'));
  return line.substr(std::min(line.find_first_not_of("# "), line.size()));
}

const ShippedRecipe* find_shipped_recipe(std::string_view name) {
  const auto all = shipped_recipes();
  const auto at =
      std::find_if(all.begin(), all.end(), [&](const ShippedRecipe& r) { return r.name == name; });
  return at == all.end() ? nullptr : &*at;
}

}  // namespace twofour
