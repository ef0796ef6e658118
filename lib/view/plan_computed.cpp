#include "lib/view/plan_computed.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "formats/error.h"
#include "lib/checkpoint/quantization_config.h"
#include "lib/checkpoint/weight_terms.h"
#include "lib/dialects/output_dialect.h"
#include "lib/plan/method.h"
#include "lib/view/layout_choice.h"
#include "lib/view/quantizing_rules.h"

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

}  // namespace

std::optional<ComputedPlan> plan_computed(const Checkpoint& c, const Recipe& recipe,
                                          const MemoryLimits& limits) {
  if (std::none_of(recipe.rules.begin(), recipe.rules.end(), makes_layout)) return std::nullopt;
  Problems ignored;  // of linears that are not chosen; planning finds those of the others
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
  // What the view shows is examined again.
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
      c, [&](size_t tensor) { return planner.is_planned(tensor); }, linears, problems);
  problems.refuse();
  made.texts = planned.config_files().texts;
  problems.refuse();
  made.planned = planned.take();
  return made;
}

}  // namespace twofour
