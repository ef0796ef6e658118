#include "lib/write/budget/budget.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>

#include "formats/atom.h"
#include "formats/error.h"
#include "formats/layouts/layouts.h"
#include "formats/naming.h"
#include "lib/base/findings/options.h"
#include "lib/base/findings/problems.h"
#include "lib/base/names/natural.h"
#include "lib/base/names/pattern.h"
#include "lib/recipe/artifact/open_unpacked.h"
#include "lib/write/budget/token_counts.h"
#include "lib/write/encode/quantized_group.h"
#include "lib/write/plan/auxiliary_files.h"
#include "lib/write/plan/plan.h"
#include "lib/write/transform/encode_groups.h"
#include "lib/write/view/layout_choice.h"
#include "lib/write/view/plan_computed.h"

namespace twofour {
namespace {

/// The layout that holds all weights. In it, gate and up have the same rows as in a layout for a pattern.
std::string dense_layout() {
  std::string name;
  for_each_layout([&]<class L>() {
    if (name.empty() && layout_pattern(L::name).empty()) name = L::name;
  });
  return name;
}

/// The same rule without pattern and masks. Its method is the corresponding method for dense weights.
Rule dense_rule(Rule rule) {
  rule.pattern = {};
  rule.masks = nullptr;
  rule.mask_hash.clear();
  if (makes_layout(rule)) rule.to = dense_layout();
  if (rule.method == SolveBy::kJoint) rule.method = SolveBy::kGptq;
  if (rule.method == SolveBy::kWanda) rule.method = SolveBy::kRtn;
  return rule;
}

/// True if a rule prunes NVFP4 and changes nothing else.
bool is_in_place(const Rule& rule) { return rule.to == "prune"; }

/// True if a rule takes an MLP, or the experts of a layer, as a whole.
bool is_by_blocks(const Rule& rule) { return is_in_place(rule) || makes_layout(rule); }

/// The name of the unit that a matrix belongs to. All routed experts of a layer are one unit. Other matrices
/// are in one unit with their group, as "model.layers.0.self_attn.k_proj+q_proj+v_proj". For rules that take
/// MLPs and experts as a whole, the unit is the block.
std::string unit_of(const EncodedMatrix& m, const std::vector<EncodedMatrix>& group, bool by_blocks) {
  const auto name = parse_module_name(m.name);
  if (name && by_blocks) return name->block;
  if (!name || name->kind != BlockKind::kRoutedExperts) {
    std::string text = group[0].name;
    for (size_t i = 1; i < group.size(); ++i) text += fmt::format("+{}", leaf_of(group[i].name));
    return text;
  }
  const bool down = name->projection == Projection::kDown;
  return fmt::format("{}.{}", name->block, down ? "down_proj" : "gate_up_proj");
}

uint64_t bytes_of_matrix(const EncodedMatrix& m) {
  const auto weights = static_cast<uint64_t>(m.rows) * static_cast<uint64_t>(m.k);
  return weights / 2 + weights / kGroup;
}

std::vector<GroupEncoding> groups_of(const Transformations& transformations) {
  std::vector<GroupEncoding> groups;
  for (const auto* group : transformations.of<QuantizedGroup>())
    groups.push_back({group, [](int, std::span<const uint8_t>) {}});
  return groups;
}

void check_fisher(const std::vector<GroupEncoding>& groups, const Statistics& statistics) {
  size_t without = 0, all = 0;
  std::string first;
  for (const GroupEncoding& g : groups) {
    for (const EncodedMatrix& m : g.group->matrices()) {
      ++all;
      const bool has = m.solving.entry != nullptr && m.solving.entry->fisher &&
                       m.solving.method != Solving::Method::kPlain;
      if (!has && without++ == 0) first = m.name;
    }
  }
  if (without == 0) return;
  throw Error(fmt::format(
      "{}: expected fisher_hessian and tokens, which give the cost of a change, for each of {}, found none "
      "for "
      "{}, the first {}; examples/statistics/collect.py --fisher makes such a file, stats collect does not",
      statistics.path().string(), counted(all, "matrix", "matrices"), without, first));
}

/// Throws Error on matrices without statistics. They would be pruned by magnitude, at an unknown cost.
void check_all_solved(const Plan& plan, const Checkpoint& source, const Statistics& statistics) {
  const auto groups = plan.transformations.of<QuantizedGroup>();
  auto solved = groups.begin();  // groups are in the same order
  for (const auto& one : plan.transformations) {
    const bool is_solved = solved != groups.end() && *solved == one.get();
    if (is_solved) ++solved;
    if (one->keeps() || is_solved) continue;
    throw Error(fmt::format(
        "{}: expected statistics with tokens for all pruned matrices, found none for {}; {} excludes it",
        statistics.path().string(), one->name(source), options::kExclude));
  }
}

/// True if a unit is an MLP or the experts of a layer.
bool is_block(const PruningUnit& unit) {
  const auto name = parse_module_name(unit.modules[0]);
  return name && unit.name == name->block;
}

void take_modules(const BudgetChoice& choice, Selection& selection) {
  selection.include.clear();
  for (size_t i = 0; i < choice.pruned; ++i) {
    for (const std::string& name : choice.units[i].modules) selection.include.push_back(exact_pattern(name));
  }
  selection.also = selection.include;
  selection.exclude.clear();
}

/// Selects units as prune does. Blocks are the default, and other linears are added. The rule's include and
/// exclude patterns stay.
void take_blocks(const BudgetChoice& choice, Selection& selection) {
  selection.also.clear();
  for (size_t i = 0; i < choice.units.size(); ++i) {
    const PruningUnit& unit = choice.units[i];
    if (is_block(unit)) {
      if (i >= choice.pruned) selection.exclude.push_back(exact_pattern(unit.name));
    } else if (i < choice.pruned) {
      for (const std::string& name : unit.modules) selection.also.push_back(exact_pattern(name));
    }
  }
}

std::string too_little(const BudgetChoice& choice) {
  const PruningUnit& first = choice.units.at(0);
  return fmt::format(
      "{}: expected enough for {}, the cheapest of {} ({:.1f} % of bytes, expected loss {:.6g}), found {}: "
      "too little",
      choice.budget.option(), first.name, counted(choice.units.size(), "unit"), 100 * choice.share(1),
      first.cost(), choice.budget.value());
}

}  // namespace

void Budget::check() const {
  const bool fits = std::isfinite(value()) && value() >= 0 && (loss || value() <= 1);
  if (fits) return;
  throw Error(fmt::format("{}: expected {}, found {}", option(),
                          share ? "a share from 0 to 1" : "a finite number, 0 or more", value()));
}

uint64_t BudgetChoice::bytes(size_t count) const {
  uint64_t sum = 0;
  for (size_t i = 0; i < count; ++i) sum += units[i].bytes;
  return sum;
}

double BudgetChoice::cost(size_t count) const {
  double sum = 0;
  for (size_t i = 0; i < count; ++i) sum += units[i].cost();
  return sum;
}

double BudgetChoice::share(size_t count) const {
  return count == 0 ? 0 : static_cast<double>(bytes(count)) / static_cast<double>(bytes(units.size()));
}

double BudgetChoice::dense_loss() const {
  double sum = 0;
  for (const PruningUnit& unit : units) sum += unit.dense;
  return sum;
}

Findings BudgetChoice::warnings() const {
  if (budget.value() == 0 || units.empty()) return {};
  if (pruned == 0) return {{Severity::kWarning, "nothing-pruned", units[0].name, too_little(*this)}};
  // Bits of NVFP4, and of NVFP4 under 2:4 as layouts store it.
  constexpr double kDense = 4.5, kPruned = 3.5, kMxfp4 = 4.25;
  const double bits = kDense - (kDense - kPruned) * share(pruned);
  if (bits < kMxfp4) return {};
  // SmolLM2-135M-Instruct, guided statistics in one pass, KL over 4,092 predictions.
  return {{Severity::kWarning, "dense-is-better", units[0].name,
           fmt::format("{:.2f} bits a weight remain, for which no pruning is needed: MXFP4 chosen by "
                       "statistics has 4.25 and is better at that size (on SmolLM2-135M its KL is 0.144; "
                       "NVFP4 that is pruned to the same size has 0.242)",
                       bits)}};
}

namespace {

/// The units with their costs, from the groups that are pruned and the groups that are only quantized.
std::vector<PruningUnit> units_of(const std::vector<GroupEncoding>& pruned,
                                  const std::vector<GroupEncoding>& dense, const Statistics& statistics,
                                  bool by_blocks) {
  const double tokens = tokens_of_model(statistics);
  std::map<std::string, PruningUnit, decltype(&natural_less)> units(&natural_less);
  const auto for_each_matrix = [&](const std::vector<GroupEncoding>& groups, auto&& f) {
    for (const GroupEncoding& g : groups) {
      for (size_t i = 0; i < g.results.size(); ++i) {
        const EncodedMatrix& m = g.group->matrices()[i];
        // A matrix that is not solved, for example a matrix of zeros, has no loss.
        const double mean = g.results[i].output.expected_loss;
        f(unit_of(m, g.group->matrices(), by_blocks), m,
          mean == 0 ? 0 : mean * tokens_of(statistics, *m.solving.entry, m) / tokens);
      }
    }
  };
  for_each_matrix(pruned, [&](const std::string& name, const EncodedMatrix& m, double loss) {
    PruningUnit& unit = units[name];
    unit.name = name;
    unit.bytes += bytes_of_matrix(m);
    unit.pruned += loss;
    const bool is_new =
        std::find(unit.modules.begin(), unit.modules.end(), m.source->name) == unit.modules.end();
    if (is_new) unit.modules.push_back(m.source->name);
  });
  for_each_matrix(dense, [&](const std::string& name, const EncodedMatrix&, double loss) {
    units.at(name).dense += loss;
  });
  std::vector<PruningUnit> listed;
  for (auto& [name, unit] : units) listed.push_back(std::move(unit));
  return listed;
}

/// A plan only for measuring. Its files are not written.
Plan plan_to_measure(const Checkpoint& source, const Rule& rule) {
  Recipe recipe(rule);
  recipe.links = Links::kFollowed;
  return make_plan(source, recipe);
}

/// Quantizes each matrix that the rule takes, once with its pattern and once without, and adds up the costs.
/// A `quantize` rule gets the dialect of the output.
std::vector<PruningUnit> measure_units(const Checkpoint& source, Rule& rule, const BudgetRun& run,
                                       Progress& progress) {
  Plan pruned_plan, dense_plan;
  std::optional<ComputedPlan> pruned_groups, dense_groups;
  std::vector<GroupEncoding> pruned, dense;
  if (makes_layout(rule)) {
    pruned_groups = plan_computed(source, Recipe(rule));
    dense_groups = plan_computed(source, Recipe(dense_rule(rule)));
    if (!pruned_groups) {
      throw Error(fmt::format("{}: expected experts or MLPs that the options choose, found none to prune",
                              source.path().string()));
    }
    if (pruned_groups->without_statistics > 0) {
      throw Error(fmt::format(
          "{}: expected statistics with tokens for all pruned matrices, found none for {}",
          rule.statistics->path().string(), counted(pruned_groups->without_statistics, "module")));
    }
    pruned = groups_of(pruned_groups->planned);
    if (dense_groups) dense = groups_of(dense_groups->planned);
  } else {
    pruned_plan = plan_to_measure(source, rule);
    // Matrices that are not pruned in place stay unchanged and have no loss.
    if (is_in_place(rule)) {
      check_all_solved(pruned_plan, source, *rule.statistics);
    } else {
      dense_plan = plan_to_measure(source, dense_rule(rule));
      rule.dialect = dense_plan.recipe.rules[0].dialect;
    }
    pruned = groups_of(pruned_plan.transformations);
    dense = groups_of(dense_plan.transformations);
  }
  check_fisher(pruned, *rule.statistics);
  std::vector<GroupEncoding*> all;
  for (auto* groups : {&pruned, &dense}) {
    for (GroupEncoding& one : *groups) all.push_back(&one);
  }
  progress.phase = "measuring";
  for (const GroupEncoding* one : all) {
    for (const Unit& unit : one->group->units(source)) progress.total += unit.read;
  }
  encode_groups(source, all, run.jobs, run.compute, progress);
  return units_of(pruned, dense, *rule.statistics, is_by_blocks(rule));
}

BudgetChoice choose_units(std::vector<PruningUnit> units, const Budget& budget) {
  BudgetChoice choice{budget, std::move(units)};
  std::stable_sort(choice.units.begin(), choice.units.end(), [](const PruningUnit& a, const PruningUnit& b) {
    return a.cost_per_byte() < b.cost_per_byte();
  });
  const auto all = static_cast<double>(choice.bytes(choice.units.size()));
  const auto pays = [&](size_t count) {
    if (budget.share) return static_cast<double>(choice.bytes(count)) <= *budget.share * all;
    return choice.cost(count) <= budget.loss.value_or(0);
  };
  while (choice.pruned < choice.units.size() && pays(choice.pruned + 1)) ++choice.pruned;
  return choice;
}

std::vector<Rule> budget_rules(const Rule& rule, const BudgetChoice& choice) {
  std::vector<Rule> rules;
  if (choice.pruned > 0) {
    Rule pruned = rule;
    pruned.label = "pruned";
    is_by_blocks(rule) ? take_blocks(choice, pruned.selection) : take_modules(choice, pruned.selection);
    rules.push_back(std::move(pruned));
  }
  if (choice.pruned < choice.units.size() && !is_in_place(rule)) {
    rules.push_back(dense_rule(rule));
    rules.back().label = "not pruned";
  }
  return rules;
}

}  // namespace

BudgetChoice prune_by_budget(const std::filesystem::path& path, Recipe& recipe, const Budget& budget,
                             const BudgetRun& run, Progress& progress) {
  budget.check();
  const Checkpoint source = open_source(path, ReadPath::kFast, {}, run.io, recipe.zero_points);
  Findings ignored;
  copied_files(source, recipe.links, ignored);  // throws Error on bad links before the long part
  Rule& rule = recipe.rules[0];
  BudgetChoice choice = choose_units(measure_units(source, rule, run, progress), budget);
  recipe.rules = budget_rules(rule, choice);
  if (recipe.rules.empty()) throw Error(too_little(choice) + ": all would stay as it is");
  return choice;
}

}  // namespace twofour
