#include "tools/cli/recipe_options.h"

#include <fmt/format.h>

#include <filesystem>
#include <system_error>
#include <vector>

#include "formats/error.h"
#include "formats/layouts/layouts.h"
#include "formats/weight_format.h"
#include "lib/base/findings/suggest.h"
#include "lib/base/io/file.h"
#include "lib/recipe/artifact/layout_names.h"
#include "lib/recipe/artifact/manifest.h"
#include "lib/recipe/artifact/recipe_file.h"
#include "lib/recipe/artifact/yaml.h"
#include "lib/write/plan/method.h"
#include "lib/write/view/layout_choice.h"
#include "tools/cli/arguments.h"

namespace twofour {
namespace {

/// The help text about the values of --to, with one value per line.
std::string layouts_text(bool all) {
  std::string text = "--to writes:";
  const auto add = [&](const char* name, const char* summary) {
    text += fmt::format("\n  {:<10} {}", name, summary);
  };
  for_each_layout([&]<class L>() { add(L::name, L::summary); });
  add("nvfp4", "NVFP4 in a dialect that engines load, without loss");
  add("fp8", "E4M3 weights with a scale for each tensor, row or block");
  for (const WeightFormat format : kMxFormats) add(format->to, format->summary);
  add("bf16", "dequantized weights");
  if (all) add("prune", "what twofour prune writes");
  if (all) add("quantize", "what twofour quantize writes");
  return text;
}

void add_to(Arguments& args, RecipeOptions& o, bool all) {
  std::vector<std::string> layouts;
  for_each_layout([&]<class L>() { layouts.push_back(L::name); });
  layouts.insert(layouts.end(), {"nvfp4", "fp8"});
  for (const WeightFormat format : kMxFormats) layouts.emplace_back(format->to);
  layouts.emplace_back("bf16");
  if (all) layouts.insert(layouts.end(), {"prune", "quantize"});
  args.option("--to", o.layout, "Layout or format to write; see below").one_of(layouts);
  args.footer(layouts_text(all));
}

void add_setting(Arguments& args, RecipeOptions& o, RuleCommand command, const RuleSetting& setting) {
  const UserForm& asked = setting.asked;
  const std::string option = spelled(setting.key, Author::kPrompt), help = setting.option_help(command),
                    fallback = setting.option_fallback(command);
  RecipeOptions::Configured& configured = o.settings[setting.key];
  if (asked.form == UserForm::Form::kFlag) {
    args.flag(option, configured.flag, help);
    return;
  }
  Argument& added = asked.form == UserForm::Form::kNumber ? args.option(option, configured.number, help)
                                                          : args.option(option, configured.text, help);
  if (asked.form == UserForm::Form::kNumber) {
    added.range(0, asked.most);
  } else if (*asked.value_name != '\0') {
    added.value_name(asked.value_name);
  } else {
    added.one_of(asked.values(command));
  }
  if (!fallback.empty()) added.default_text(fallback);
}

/// The value that was given for a setting, with the type of the setting's row. JSON null if none was given.
Json value_of(const RecipeOptions& o, const RuleSetting& setting) {
  const auto at = o.settings.find(setting.key);
  if (at == o.settings.end()) return {};
  const RecipeOptions::Configured& configured = at->second;
  if (configured.flag) return true;
  if (configured.number >= 0) return configured.number;
  return configured.text.empty() ? Json() : Json(configured.text);
}

}  // namespace

std::string RecipeOptions::text(std::string_view key) const {
  const auto at = settings.find(key);
  return at == settings.end() ? "" : at->second.text;
}

void add_recipe_options(Arguments& args, RecipeOptions& o, RuleCommand command) {
  const ArgumentGroup group(args, "Formats");
  const bool converts = command == kConverts || command == kPlans;
  if (converts) add_to(args, o, command == kPlans);
  for (const RuleSetting* setting : option_settings(command)) {
    if (!setting->asked.is_of_statistics) add_setting(args, o, command, *setting);
  }
  if (!converts) return;
  args.option("--recipe", o.recipe,
              "Rules in place of --to: a YAML or JSON file, a name that twofour recipes lists, or the "
              "twofour.json of an artifact; see twofour help recipes")
      .value_name("FILE");
  exclude_rule_settings(args, "--recipe");
}

void add_setting(Arguments& args, RecipeOptions& o, RuleCommand command, std::string_view key) {
  add_setting(args, o, command, rule_setting(key));
}

void add_statistics_options(Arguments& args, RecipeOptions& o, RuleCommand command) {
  const ArgumentGroup group(args, "Statistics");
  const char* what = command == kConverts ? "Choose the weights that are quantized or pruned, for a "
                                            "layout too, by the statistics of their inputs in this file "
                                            "(lib/recipe/statistics/README.md, examples/statistics); of "
                                            "--recipe, method "
                                            "and sweeps of a rule say how"
                                          : "Choose weights by the statistics of their inputs in this file "
                                            "(lib/recipe/statistics/README.md, examples/statistics). Block "
                                            "scales are "
                                            "chosen with them";
  args.option("--stats", o.statistics, what).value_name("FILE").default_text("none: each weight for itself");
  args.flag("--strict-stats", o.strict_statistics,
            "Refuse statistics of other weights of the same model, as those of the BF16 model for its "
            "quantized copy, or of weights that nothing names");
  for (const RuleSetting* setting : option_settings(command)) {
    if (setting->asked.is_of_statistics) add_setting(args, o, command, *setting);
  }
}

void add_mask_option(Arguments& args, RecipeOptions& o, RuleCommand command) {
  const ArgumentGroup group(args, "Statistics");
  const char* where = command == kConverts    ? "With a layout or rules that hold a pattern: "
                      : command == kQuantizes ? "With --pattern: "
                                              : "";
  args.option("--mask", o.mask,
              fmt::format("{}prune by the masks of this file, as MaskLLM makes them: safetensors with M.mask "
                          "or M, U8 or BOOL [N, K], for each module M that is pruned; 1 stays",
                          where))
      .value_name("FILE")
      .default_text("masks are chosen");
}

void add_budget_options(Arguments& args, RecipeOptions& o, RuleCommand command) {
  const ArgumentGroup group(args, "Statistics");
  args.option("--budget", o.budget.share,
              fmt::format(
                  "Prune this share of the bytes, 0 to 1, and {} the rest: with a pattern and --stats, whose "
                  "fisher_hessian says what each costs the model. The cheapest a byte come first; what is "
                  "fused stays together. --dry-run prints the curve",
                  command == kPrunes     ? "leave"
                  : command == kConverts ? "hold all weights of"
                                         : "only quantize"))
      .value_name("SHARE")
      .default_text("all is pruned");
  args.option("--max-loss", o.budget.loss,
              "Prune as much as stays below this expected loss, else as --budget")
      .value_name("X")
      .default_text("any")
      .excludes("--budget");
  args.option("--html", o.html, "With --budget or --max-loss: write a page about the choice, for a browser")
      .value_name("FILE");
}

void exclude_rule_settings(Arguments& args, const std::string& option) {
  for (const char* other : {"--to", "--include", "--exclude", "--also"}) args.at(option).excludes(other);
  for (const RuleSetting* setting : option_settings(kConverts | kPlans)) {
    if (!setting->asked.is_of_statistics) args.at(option).excludes(spelled(setting->key, Author::kPrompt));
  }
}

namespace {

/// The formats beside NVFP4 that statistics choose codes of: "fp8, mxfp8, ".
std::string solved_formats() {
  std::string names = "fp8, ";
  for (const WeightFormat format : kMxFormats) names += fmt::format("{}, ", format->to);
  return names;
}

/// Gives a rule the statistics of --stats, if the rule can use them.
void take_statistics(const RecipeOptions& o, const std::shared_ptr<const Statistics>& statistics,
                     Rule& rule) {
  rule.strict_statistics = o.strict_statistics;
  rule.statistics = statistics;
  rule.statistics_hash = statistics->hash().hex();
  rule.statistics_from = statistics->collected_on();
  rule.statistics_input = statistics->metadata("input");
}

std::shared_ptr<const Statistics> open_statistics_file(const RecipeOptions& o) {
  if (!o.statistics.empty()) return std::make_shared<const Statistics>(Statistics::open(o.statistics));
  if (o.strict_statistics) throw Error("--strict-stats: expected --stats beside it, found none");
  return nullptr;
}

/// Gives the masks of --mask to the rules that prune.
void take_masks(const RecipeOptions& o, std::vector<Rule*> rules) {
  if (o.mask.empty()) return;
  const auto masks = std::make_shared<const MaskFile>(MaskFile::open(o.mask));
  const std::string hash = masks->hash().hex();
  size_t taken = 0;
  for (Rule* rule : rules) {
    const bool prunes = rule->to == "prune" || !layout_pattern(rule->to).empty() ||
                        (rule->to == "quantize" && !rule->pattern.empty());
    if (!prunes) continue;
    rule->masks = masks;
    rule->mask_hash = hash;
    ++taken;
  }
  if (taken == 0)
    throw Error("--mask: expected a layout, rule or command with a pattern beside it, found none");
}

bool is_manifest(const std::string& name) { return std::filesystem::path(name).filename() == kManifestName; }

/// The rules by which an artifact was made, with every default, from its twofour.json.
Recipe read_manifest_recipe(const std::string& name) {
  if (const std::string problem = integrity_error(InputFile(name)); !problem.empty())
    throw Error(fmt::format("{}: {}", name, problem));
  const Json json = parse_json(name, read_text(name));
  if (!json.contains("recipe")) throw Error(fmt::format("{}: expected a recipe, found none", name));
  Recipe recipe = recipe_from_json(name, json.at("recipe"));
  if (recipe.edit || recipe.rules.empty()) {
    throw Error(
        fmt::format("{}: expected rules, found the recipe of a changed checkpoint; run that command", name));
  }
  return recipe;
}

Recipe find_recipe(const std::string& name) {
  if (is_manifest(name)) return read_manifest_recipe(name);
  std::error_code error;
  if (name.find_first_of("/.") != name.npos || std::filesystem::exists(name, error))
    return read_recipe(name, read_text(name, kLongestYaml));
  if (const ShippedRecipe* shipped = find_shipped_recipe(name)) return read_recipe(name, shipped->text);
  std::vector<std::string> names;
  for (const ShippedRecipe& r : shipped_recipes()) names.emplace_back(r.name);
  throw Error(fmt::format("--recipe: expected a file, or a name that twofour recipes lists, found '{}'{}",
                          name, did_you_mean(name, names)));
}

}  // namespace

Recipe open_recipe(const RecipeOptions& o) {
  for (const RuleSetting& setting : rule_settings()) {
    if (!setting.has_user_form() || !setting.asked.is_of_statistics || value_of(o, setting).is_null())
      continue;
    throw Error(fmt::format("{}: expected as a word of rules with --recipe, found as an option",
                            spelled(setting.key, Author::kPrompt)));
  }
  Recipe recipe = find_recipe(o.recipe);
  if (is_manifest(o.recipe)) {
    open_statistics(recipe, o.statistics);
    open_masks(recipe, o.mask);
    return recipe;
  }
  std::vector<Rule*> rules;
  for (Rule& rule : recipe.rules) rules.push_back(&rule);
  take_masks(o, rules);
  const auto statistics = open_statistics_file(o);
  if (!statistics) return recipe;
  size_t taken = 0;
  for (Rule& rule : recipe.rules) {
    if (!can_solve(rule) || rule.method == SolveBy::kMagnitude) continue;
    take_statistics(o, statistics, rule);
    ++taken;
  }
  if (taken == 0)
    throw Error(
        fmt::format("--stats: expected a rule to: nvfp4, {}{}, or keep "
                    "with a pattern, found none in the recipe",
                    solved_formats(), layout_names()));
  return recipe;
}

void take_word(const RecipeOptions& o, std::string_view key, Rule& rule) {
  const RuleSetting& setting = rule_setting(key);
  const Json value = value_of(o, setting);
  if (value.is_null() || setting.take({}, value, rule)) return;
  const auto text = value.get<std::string>();
  check_taken(rule, setting, text);
  throw Error(setting.asked.expected == nullptr
                  ? fmt::format("{}: expected {}, found {}", rule.name(key), setting.file_values(), text)
                  : fmt::format("{}: expected {}, found '{}'", rule.name(key),
                                setting.asked.expected(text, false), text));
}

Rule make_rule(const RecipeOptions& o) {
  Rule rule;
  rule.to = o.layout;
  for (const RuleSetting& setting : rule_settings()) {
    if (setting.has_user_form()) take_word(o, setting.key, rule);
  }
  take_masks(o, {&rule});
  if (const auto statistics = open_statistics_file(o)) {
    if (!can_solve(rule)) {
      throw Error(
          fmt::format("--stats: expected with --recipe, quantize, "
                      "prune or --to {}{}, found with --to {}",
                      solved_formats(), layout_names(), rule.to));
    }
    take_statistics(o, statistics, rule);
  }
  rule.awaits_statistics = o.collects_statistics && can_solve(rule);
  Rule completed = rule;
  make_method(completed);  // refuses settings that the method does not use
  return rule;
}

}  // namespace twofour
