#include "lib/view/quantizing_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "formats/layouts/layouts.h"
#include "lib/dialects/output_dialect.h"
#include "lib/encode/encode_rules.h"
#include "lib/encode/quantized_group.h"
#include "lib/methods/quantize_groups.h"
#include "lib/names/pattern.h"
#include "lib/words/rule_words.h"

namespace twofour {
namespace {

/// The dialect that linears appear in where the recipe says none.
constexpr const char* kDefaultDialect = "modelopt";

/// How weights are chosen. A layout's pattern is that of what it packs, where statistics or masks choose it.
void take_solving_words(const Rule& rule, Rule& to) {
  to.method = rule.method;
  to.sweeps = rule.sweeps;
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

/// The rule by which `quantize` makes what a layout's rule needs of these linears.
Rule quantizing_rule(const Rule& rule, std::string dialect, const std::vector<Linear>& linears,
                     const std::vector<size_t>& chosen) {
  Rule all = rule;
  all.to = "quantize";
  all.dialect = std::move(dialect);
  all.selection = {};
  all.fold = {};
  all.label = {};
  take_solving_words(rule, all);
  complete_quantize_words(all);
  select(linears, chosen, all);
  return all;
}

/// Whether the default dialect has words for every linear that keeps its format.
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

}  // namespace

std::string dialect_of(const Checkpoint& c, const Recipe& recipe, const std::vector<Linear>& linears,
                       const std::vector<ComputedLinears>& chosen) {
  const bool any = recipe.dialect.empty();
  if (!any && recipe.dialect != "source") return recipe.dialect;
  const OutputDialect* own = source_dialect(c);
  if (own == nullptr || own->nvfp4 == nullptr) return kDefaultDialect;
  // What is pruned in place keeps its own words.
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
        std::find_if(rules.begin(), rules.end(), [&](const Rule& x) { return same_words(x, rule); });
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
  const Checkpoint& c = planner.source;
  for (size_t r = 0; r < recipe.rules.size(); ++r) {
    std::map<std::string_view, std::vector<size_t>> by_dialect;
    for (const size_t i : chosen[r].to_prune) {
      const Nvfp4Dialect& dialect = *c.nvfp4_modules()[*linears[i].nvfp4].dialect;
      if (dialect.stacked) {
        planner.problems.add(fmt::format(
            "{}: expected every expert in tensors of its own to prune by statistics or masks, found a stack",
            linears[i].name));
        continue;
      }
      by_dialect[dialect.name].push_back(i);
    }
    for (const auto& [dialect, of_dialect] : by_dialect) {
      Rule rule{.to = "prune"};
      rule.zero_block = recipe.rules[r].zero_block;
      take_solving_words(recipe.rules[r], rule);
      select(linears, of_dialect, rule);
      EncodeRule encode = prune_rule(rule, dialect);
      encode.folds_pairs = true;
      plan_quantized_groups(encode, rule, planner);
    }
  }
}

}  // namespace twofour
