#include "lib/recipe/artifact/recipe_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "formats/error.h"
#include "formats/layouts/layouts.h"
#include "formats/weight_format.h"
#include "lib/base/findings/and_more.h"
#include "lib/recipe/artifact/yaml.h"
#include "lib/recipe/settings/rule_settings.h"
#include "lib/source/dialects/output_dialect.h"

namespace twofour {
namespace {

/// A value of `to` in a rule of a recipe file.
struct TargetRow {
  std::string_view to;      ///< the value in the file
  std::string_view method;  ///< the value in Rule::to
  unsigned kinds;           ///< MethodKind
};

std::vector<TargetRow> target_rows() {
  std::vector<TargetRow> rows = {
      {"keep", "keep", kKeeps | kDropsCodes}, {"bf16", "bf16", kToBf16}, {"fp8", "fp8", kToFp8}};
  for (const WeightFormat format : kMxFormats) rows.push_back({format->to, format->to, kToMx});
  rows.push_back({"nvfp4", "quantize", kToNvfp4});
  for_each_layout([&]<class L>() { rows.push_back({L::name, L::name, kToLayout}); });
  return rows;
}

std::string target_names(unsigned kinds) {
  std::vector<std::string_view> names;
  for (const TargetRow& row : target_rows()) {
    if (row.kinds & kinds) names.push_back(row.to);
  }
  return either(names);
}

constexpr const char* kMatches = "a role, a module's name, a glob, re: and a regular expression, or a list";

bool is_pattern(std::string_view text) {
  return text.starts_with("re:") || text.find_first_of("*?[") != text.npos;
}

/// Adds one element of `match` to a selection. `known` has the elements before it.
void add_match(const YamlPlace& place, Selection& selection, std::set<std::string>& known) {
  const std::string& text = place.text(kMatches);
  if (!known.insert(text).second)
    place.fail(fmt::format("expected each entry once, found {} again", json_quote_short(text)));
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

/// Reads `match`. A role chooses modules by itself, a glob or expression restricts the default set, and a
/// name adds to the default set.
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

/// The label of a rule for messages: "rule 2 (experts, *.mlp.*)".
std::string label_of(size_t index, const Selection& s) {
  std::vector<std::string> names;
  for (const ModuleRole role : s.roles) names.emplace_back(role_name(role));
  for (const auto* patterns : {&s.include, &s.also}) {
    for (const NamePattern& p : *patterns) names.push_back(p.text());
  }
  std::string text = names[0];
  if (text.size() > 60) {
    text.resize(57);
    text += "...";
  }
  text += and_more(names.size(), " and {} more");
  return fmt::format("rule {} ({})", index + 1, text);
}

std::vector<std::string> names_of(const std::vector<RecipeKey>& keys) {
  std::vector<std::string> names;
  for (const RecipeKey& k : keys) names.push_back(k.key);
  return names;
}

/// Reads the value of a setting in the form that the setting has.
Json read_value(const YamlPlace& place, const UserForm& asked) {
  switch (asked.form) {
    case UserForm::Form::kChoice:
      return place.word(asked.values(kConverts));
    case UserForm::Form::kFlag:
      return place.boolean();
    case UserForm::Form::kNumber:
      return place.integer(0, asked.most);
    case UserForm::Form::kText:
    case UserForm::Form::kNone:
      break;
  }
  return place.text(either(asked.values(kConverts)));
}

/// Reads a setting of a rule. Throws Error if the setting does not belong to the rule's target.
void read_asked(const YamlPlace& place, const RuleSetting& word, const TargetRow& target, Rule& rule) {
  const UserForm& asked = word.asked;
  if (!(asked.methods & asked.files & target.kinds))
    place.fail(fmt::format("expected it only with to: {}, found it with to: {}",
                           target_names(asked.methods & asked.files), target.to));
  const Json value = read_value(place, asked);
  if (asked.leaves_default && value == asked.values(kConverts)[0]) return;
  if (!word.take({.where = place.where, .path = place.path, .unknown = {}, .is_recipe_file = true}, value,
                 rule))
    place.expected(asked.expected(value.get<std::string>(), true));
}

void check_together(const YamlPlace& place, const TargetRow& target, Rule& rule) {
  for (const std::string_view key : {keys::kBlock, keys::kScaleDtype}) {
    const auto word = place.find(key);
    if (word && !rule.granularity.empty() && rule.granularity != Granularity::kBlock)
      word->fail(
          fmt::format("expected it only with granularity: block, found it with {}", rule.granularity.text()));
  }
  if (!rule.block.empty() || !rule.scale_dtype.empty()) rule.granularity = Granularity::kBlock;
  const bool keeps = (target.kinds & kKeeps) != 0, prunes = keeps && !rule.pattern.empty();
  if (const auto method = place.find(keys::kMethod)) {
    if (keeps && !prunes) method->fail("expected it only with pattern, found it without");
    const bool dense = rule.method == SolveBy::kGptq || rule.method == SolveBy::kRtn;
    const bool has_pattern = !rule.pattern.empty() || !layout_pattern(target.method).empty();
    if (has_pattern == dense && (dense || rule.method != SolveBy::kMagnitude))
      method->expected(has_pattern ? "joint, wanda or magnitude with pattern"
                                   : "gptq, rtn or magnitude without pattern");
  }
  if (!prunes) return;
  rule.to = "prune";
  // Pruning in the source's own format changes nothing else.
  for (const std::string_view key : {keys::kInputScale, keys::kOneInputScale}) {
    if (const auto scale = place.find(key))
      scale->fail("expected it without pattern if to: keep is set, found both");
  }
}

Rule read_rule(const YamlPlace& place, size_t index) {
  place.check_map("a rule", names_of(rule_keys()));
  Rule rule;
  rule.author = Author::kFile;
  rule.selection = read_match(place.required("match"));
  const YamlPlace to = place.required(keys::kTo);
  const auto rows = target_rows();
  const std::string& name = to.text(target_names(kEveryMethod));
  const auto target =
      std::find_if(rows.begin(), rows.end(), [&](const TargetRow& r) { return r.to == name; });
  if (target == rows.end()) to.expected(target_names(kEveryMethod));
  rule.to = target->method;
  for (const RuleSetting* word : file_settings()) {
    if (const auto configured = place.find(word->key)) read_asked(*configured, *word, *target, rule);
  }
  check_together(place, *target, rule);
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
           fmt::format(
               "how zero points of INT4 are read, as {}, which overrides it (default: as the config states)",
               options::kZeroPoints)},
          {"rules", "a list", "required, at least one; the first that takes a module decides"},
          {"max_shard_size", "5GB, 500MB",
           fmt::format("as {}, which overrides it (default: 5GB)", options::kMaxShardSize)},
          {"readme", "true, false", fmt::format("false: as {} (default: true)", options::kNoReadme)}};
}

std::vector<RecipeKey> rule_keys() {
  std::vector<RecipeKey> keys = {{"match", "see below", "required"},
                                 {"to", target_names(kEveryMethod), "required"}};
  for (const RuleSetting* word : file_settings()) {
    keys.push_back({word->key, word->file_values(),
                    fmt::format("with to: {}: {}", target_names(word->asked.methods & word->asked.files),
                                word->file_help())});
  }
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
  const auto readme = top.find("readme");
  recipe.readme = !readme || readme->boolean() ? Readme::kWritten : Readme::kLeftOut;
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
