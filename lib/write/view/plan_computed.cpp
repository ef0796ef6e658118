#include "lib/write/view/plan_computed.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "formats/error.h"
#include "formats/layouts/layouts.h"
#include "lib/base/names/pattern.h"
#include "lib/recipe/settings/rule_settings.h"
#include "lib/source/config/quantization_config.h"
#include "lib/source/dialects/output_dialect.h"
#include "lib/source/linears/weight_terms.h"
#include "lib/write/encode/encode_rules.h"
#include "lib/write/encode/quantized_group.h"
#include "lib/write/methods/quantize_groups.h"
#include "lib/write/plan/method.h"
#include "lib/write/view/layout_choice.h"

namespace twofour {
namespace {

void check_inputs(const Checkpoint& c, const std::vector<Linear>& linears,
                  const std::vector<ComputedLinears>& chosen, Problems& problems) {
  for (const ComputedLinears& of_rule : chosen) {
    for (const size_t i : of_rule.to_quantize) {
      const Linear& m = linears[i];
      if (m.k % kGroup == 0) continue;
      problems.add(fmt::format("{}: expected K a multiple of {} to quantize, found {}", c.where(m.weight),
                               kGroup, m.k));
    }
  }
}

void note_computed(const Checkpoint& c, const std::vector<Linear>& linears,
                   const std::vector<ComputedLinears>& chosen, Findings& findings) {
  std::map<std::string, size_t> counts;
  size_t without_statistics = 0;
  for (const ComputedLinears& of_rule : chosen) {
    without_statistics += of_rule.without_statistics;
    for (const size_t i : of_rule.to_quantize) {
      const bool is_float = !linears[i].format->coded;
      ++counts[std::string(is_float ? dtype_name(c.tensors()[linears[i].weight].dtype)
                                    : linears[i].format->name)];
    }
  }
  std::string formats;
  for (const auto& [format, count] : counts) {
    formats += fmt::format("{}{} in {}", formats.empty() ? "" : ", ", counted(count, "module"), format);
  }
  if (!formats.empty()) {
    findings.push_back({Severity::kNote, "quantized-first", c.path().string(),
                        fmt::format("expected NVFP4 for a layout, found {}: quantized first", formats)});
  }
  if (without_statistics == 0) return;
  findings.push_back({Severity::kWarning, "few-statistics", c.path().string(),
                      fmt::format("{} in NVFP4 have no statistics with tokens and are pruned by magnitude",
                                  counted(without_statistics, "module"))});
}

/// The dialect of computed linears if the recipe names none.
constexpr const char* kDefaultDialect = "modelopt";

/// Copies the settings that choose weights. If statistics or masks choose weights, the layout's pattern
/// applies to the weights that it packs.
void take_solving_settings(const Rule& rule, Rule& to) {
  to.method = rule.method;
  to.sweeps = rule.sweeps;
  to.shrink = rule.shrink;
  to.scale_search = rule.scale_search;
  to.keeps_absent = rule.keeps_absent;
  to.strict_statistics = rule.strict_statistics;
  to.statistics_hash = rule.statistics_hash;
  to.statistics = rule.statistics;
  to.encoded = rule.encoded;
  to.mask_hash = rule.mask_hash;
  to.masks = rule.masks;
  const bool chooses = rule.masks || (rule.statistics && rule.method != SolveBy::kMagnitude);
  if (chooses && makes_sparse_layout(rule)) to.pattern = layout_pattern(rule.to);
}

void select(const std::vector<Linear>& linears, const std::vector<size_t>& chosen, Rule& rule) {
  for (const size_t i : chosen) rule.selection.include.push_back(exact_pattern(linears[i].name));
  rule.selection.also = rule.selection.include;
}

/// The rule by which `quantize` makes these linears in the form that a layout's rule needs.
Rule quantizing_rule(const Rule& rule, std::string dialect, const std::vector<Linear>& linears,
                     const std::vector<size_t>& chosen) {
  Rule all = rule;
  all.to = "quantize";
  all.dialect = std::move(dialect);
  all.selection = {};
  all.fold = {};
  all.label = {};
  take_solving_settings(rule, all);
  complete_quantize_settings(all);
  select(linears, chosen, all);
  return all;
}

/// True if the default dialect can describe every linear whose format stays.
bool default_holds_rest(const Checkpoint& c, const std::vector<Linear>& linears,
                        const std::vector<ComputedLinears>& chosen) {
  std::vector<bool> is_chosen(linears.size());
  for (const ComputedLinears& of_rule : chosen) {
    for (const size_t i : of_rule.to_quantize) is_chosen[i] = true;
  }
  const OutputDialect& dialect = output_dialect(kDefaultDialect, true);
  for (size_t i = 0; i < linears.size(); ++i) {
    const bool stays = !is_chosen[i] && linears[i].format->coded;
    if (stays && dialect.entry(scheme_of(c, linears[i])).is_null()) return false;
  }
  return true;
}

std::string dialect_of(const Checkpoint& c, const Recipe& recipe, const std::vector<Linear>& linears,
                       const std::vector<ComputedLinears>& chosen) {
  const bool any = recipe.dialect.empty();
  if (!any && recipe.dialect != "source") return recipe.dialect;
  const OutputDialect* own = source_dialect(c);
  if (own == nullptr || own->nvfp4 == nullptr) return kDefaultDialect;
  // Linears that are pruned in place keep their own entries.
  const bool prunes =
      std::any_of(chosen.begin(), chosen.end(), [](auto& of_rule) { return !of_rule.to_prune.empty(); });
  return any && !prunes && default_holds_rest(c, linears, chosen) ? kDefaultDialect : std::string(own->name);
}

std::vector<Rule> quantizing_rules(const Recipe& recipe, const std::string& dialect,
                                   const std::vector<Linear>& linears,
                                   const std::vector<ComputedLinears>& chosen) {
  std::vector<Rule> rules;
  for (size_t r = 0; r < recipe.rules.size(); ++r) {
    if (chosen[r].to_quantize.empty()) continue;
    Rule rule = quantizing_rule(recipe.rules[r], dialect, linears, chosen[r].to_quantize);
    const auto same =
        std::find_if(rules.begin(), rules.end(), [&](const Rule& x) { return same_settings(x, rule); });
    if (same == rules.end()) {
      rules.push_back(std::move(rule));
      continue;
    }
    for (const auto list : {&Selection::include, &Selection::also}) {
      auto& to = same->selection.*list;
      const auto& from = rule.selection.*list;
      to.insert(to.end(), from.begin(), from.end());
    }
  }
  return rules;
}

void plan_pruned_in_place(const Recipe& recipe, const std::vector<Linear>& linears,
                          const std::vector<ComputedLinears>& chosen, Planner& planner) {
  for (size_t r = 0; r < recipe.rules.size(); ++r) {
    if (chosen[r].to_prune.empty()) continue;
    Rule rule{.to = "prune"};
    rule.zero_block = recipe.rules[r].zero_block;
    take_solving_settings(recipe.rules[r], rule);
    std::vector<size_t> modules;
    for (const size_t i : chosen[r].to_prune) modules.push_back(*linears[i].nvfp4);
    plan_pruned_groups(rule, modules, true, planner);
  }
}

}  // namespace

std::optional<ComputedPlan> plan_computed(const Checkpoint& c, const Recipe& recipe,
                                          const MemoryLimits& limits) {
  if (std::none_of(recipe.rules.begin(), recipe.rules.end(), makes_layout)) return std::nullopt;
  Problems ignored;  // problems of linears that are not chosen; planning finds the problems of chosen linears
  const std::vector<Linear> linears = find_weight_modules(c, ignored);
  const auto chosen = choose_computed(c, linears, recipe);
  if (std::all_of(chosen.begin(), chosen.end(), [](auto& of_rule) { return of_rule.empty(); }))
    return std::nullopt;
  ComputedPlan made;
  for (const ComputedLinears& of_rule : chosen) {
    made.quantizes = made.quantizes || !of_rule.to_quantize.empty();
    made.without_statistics += of_rule.without_statistics;
  }
  if (made.quantizes) refuse_entries_that_cannot_be_kept(c);
  made.findings = c.findings();
  // The modules of the view are examined again.
  std::erase_if(made.findings, [](const Finding& f) { return f.id == "incomplete-module"; });
  Problems problems;
  check_inputs(c, linears, chosen, problems);
  problems.refuse();
  note_computed(c, linears, chosen, made.findings);
  std::vector<Rule> rules = quantizing_rules(recipe, dialect_of(c, recipe, linears, chosen), linears, chosen);
  Planner planner(
      {c, nullptr, limits, rules.size() == 1, made.findings, problems, Author::kPrompt, ReadBy::kLayouts});
  plan_pruned_in_place(recipe, linears, chosen, planner);
  for (Rule& rule : rules) make_method(rule)->plan(rule, planner);
  PlannedRules planned = planner.end_rules();
  if (made.quantizes) {
    Rule rest{.to = "keep"};
    make_method(rest)->finish(planned);
  }
  refuse_changed_weights(
      c, [&](size_t tensor) { return planner.is_planned(tensor); }, linears, problems,
      [&](size_t tensor) { return planner.is_understood(tensor); });
  problems.refuse();
  made.texts = planned.config_files().texts;
  problems.refuse();
  made.planned = planned.take();
  return made;
}

}  // namespace twofour
