#include "tools/cli/budget_run.h"

#include <fmt/format.h>

#include <cmath>

#include "formats/layouts/layouts.h"
#include "lib/artifact/layout_names.h"
#include "lib/artifact/open_source.h"
#include "lib/budget/budget.h"
#include "lib/io/file_states.h"
#include "lib/output/destination.h"
#include "lib/plan/output_files.h"
#include "lib/report/report.h"
#include "lib/transform/open_to_convert.h"

namespace twofour {
namespace {

/// Refuses words that make no budget.
void check_budget(const RecipeOptions& o) {
  const char* name = o.budget ? "--budget" : "--max-loss";
  if (!o.recipe.empty()) throw Error(fmt::format("{}: expected without --recipe, found both", name));
  const double value = o.budget ? *o.budget : *o.max_loss;
  const bool prunes =
      !o.text(keys::kPattern).empty() || !layout_pattern(o.layout).empty() || o.layout == "prune";
  if (!prunes)
    throw Error(
        fmt::format("{}: expected --pattern or a layout that holds one beside it, found neither", name));
  if (o.statistics.empty() || Chosen<SolveBy>(o.text(keys::kMethod)) == SolveBy::kMagnitude)
    throw Error(
        fmt::format("{}: expected --stats beside it, which say what pruning costs, found none", name));
  if (!o.text(keys::kKeepGlobalScale).empty())
    throw Error(fmt::format("{}: expected without --keep-global-scale, found both", name));
  const bool fits = std::isfinite(value) && value >= 0 && (o.max_loss || value <= 1);
  if (!fits) {
    throw Error(fmt::format("{}: expected {}, found {}", name,
                            o.budget ? "a share from 0 to 1" : "a finite number, 0 or more", value));
  }
}

/// A unit with the sums over it and all before it.
struct CurvePoint {
  const PruningUnit& unit;
  double share, loss;
  bool is_pruned;
};

std::vector<CurvePoint> curve_of(const BudgetChoice& choice) {
  std::vector<CurvePoint> points;
  const auto all = static_cast<double>(choice.bytes(choice.units.size()));
  for (size_t i = 0; i < choice.units.size(); ++i) {
    points.push_back({choice.units[i], static_cast<double>(choice.bytes(i + 1)) / all, choice.cost(i + 1),
                      i < choice.pruned});
  }
  return points;
}

std::string too_little(const RecipeOptions& o, const BudgetChoice& choice) {
  const PruningUnit& first = choice.units.at(0);
  return fmt::format(
      "{}: expected what pays for {}, the cheapest of {} ({:.1f} % of bytes, expected loss {:.6g}), found "
      "{}: "
      "too little",
      o.budget ? "--budget" : "--max-loss", first.name, counted(choice.units.size(), "unit"),
      100 * static_cast<double>(first.bytes) / static_cast<double>(choice.bytes(choice.units.size())),
      first.cost(), o.budget ? *o.budget : *o.max_loss);
}

double dense_loss(const BudgetChoice& choice) {
  double sum = 0;
  for (const PruningUnit& u : choice.units) sum += u.dense;
  return sum;
}

double pruned_share(const BudgetChoice& choice) {
  return choice.pruned == 0 ? 0 : curve_of(choice)[choice.pruned - 1].share;
}

std::string summary(const BudgetChoice& choice) {
  return fmt::format("pruned: {} of {} units, {:.1f} % of bytes, expected loss {:.6g} beyond {:.6g} dense",
                     choice.pruned, choice.units.size(), 100 * pruned_share(choice),
                     choice.cost(choice.pruned), dense_loss(choice));
}

Json budget_to_json(const BudgetChoice& choice) {
  Json units = Json::array();
  for (const CurvePoint& p : curve_of(choice)) {
    units.push_back({{"name", p.unit.name},
                     {"modules", p.unit.modules},
                     {"bytes", p.unit.bytes},
                     {"dense_loss", p.unit.dense},
                     {"pruned_loss", p.unit.pruned},
                     {"share", p.share},
                     {"loss", p.loss},
                     {"pruned", p.is_pruned}});
  }
  return {{"share", pruned_share(choice)},
          {"loss", choice.cost(choice.pruned)},
          {"dense_loss", dense_loss(choice)},
          {"units", std::move(units)}};
}

void print_curve(const BudgetChoice& choice) {
  print_stdout("{:>7} {:>12}  unit, cheapest a byte first; share of bytes and expected loss up to it\n",
               "share", "loss");
  for (const CurvePoint& p : curve_of(choice)) {
    print_stdout("{:>6.1f}% {:>12.6g}  {} {}\n", 100 * p.share, p.loss, p.is_pruned ? "prune" : "keep ",
                 printable_line(p.unit.name));
  }
  print_stdout("{}\n", summary(choice));
}

Report budget_report(const BudgetChoice& choice, const std::string& command, const std::string& source) {
  Report report;
  report.command = command + " --budget";
  report.subject = source;
  report.verdict = fmt::format("{} of {} units pruned", choice.pruned, choice.units.size());
  report.facts = {{"units", static_cast<double>(choice.units.size())},
                  {"pruned", static_cast<double>(choice.pruned)},
                  {"share of bytes", 0, false, fmt::format("{:.1f} %", 100 * pruned_share(choice))},
                  {"expected loss", 0, false, fmt::format("{:.6g}", choice.cost(choice.pruned))},
                  {"expected loss, dense", 0, false, fmt::format("{:.6g}", dense_loss(choice))}};
  report.metrics = {
      {"cost_per_byte", "expected loss of pruning a byte", ReportUnit::kNumber, ReportCell::kLargest, true},
      {"cost", "expected loss of pruning", ReportUnit::kNumber, ReportCell::kSum, true},
      {"dense", "expected loss of quantizing", ReportUnit::kNumber, ReportCell::kSum, true},
      {"pruned", "pruned", ReportUnit::kCount, ReportCell::kSum, false}};
  ReportTable curve{"the curve: share of bytes and expected loss, cheapest a byte first",
                    {"share", "loss", "unit", ""},
                    {}};
  for (const CurvePoint& p : curve_of(choice)) {
    report.rows.push_back(
        {p.unit.name,
         {p.unit.cost_per_byte(), p.unit.cost(), p.unit.dense, static_cast<double>(p.is_pruned)}});
    curve.rows.push_back({fmt::format("{:.1f} %", 100 * p.share), fmt::format("{:.6g}", p.loss), p.unit.name,
                          p.is_pruned ? "pruned" : "kept"});
  }
  report.tables.push_back(std::move(curve));
  return report;
}

}  // namespace

BudgetChoice choose_by_budget(const ConversionOptions& o, const RecipeOptions& options, Device device,
                              const Common& common, Recipe& recipe) {
  check_budget(options);
  if (!options.html.empty()) check_report_file(options.html);
  const Checkpoint source = open_source(o.source, ReadPath::kFast, {}, parse_io(o.io), recipe.zero_points);
  Findings ignored;
  copied_files(source, recipe.links, ignored);  // refuses links before the long part
  BudgetChoice choice;
  with_progress(common, [&](Progress& progress) {
    choice = choose_units(measure_units(source, recipe.rules[0], common.jobs, {best_isa(), device}, progress),
                          {options.budget, options.max_loss});
  });
  recipe.rules = budget_rules(recipe.rules[0], choice);
  if (recipe.rules.empty()) throw Error(too_little(options, choice) + ": all would stay as it is");
  if (!options.html.empty()) write_report(options.html, budget_report(choice, common.command, o.source));
  return choice;
}

void warn_of_small_budget(const RecipeOptions& options, const BudgetChoice& choice, Findings& findings) {
  const double allowed = options.budget ? *options.budget : *options.max_loss;
  if (choice.pruned > 0 || allowed == 0 || choice.units.empty()) return;
  findings.push_back(
      {Severity::kWarning, "nothing-pruned", choice.units[0].name, too_little(options, choice)});
}

int run_by_budget(const ConversionOptions& o, const RecipeOptions& recipe_options, const Common& common) {
  if (o.opened != nullptr) o.opened->download_whole_files();
  check_budget(recipe_options);
  const Device device = choose_solver_device(common, true);
  Recipe recipe = make_recipe(recipe_options, o);
  const Destination destination = claim_destination(o);
  FileStates states({o.source});
  states.leave_out(recipe_options.html);
  const BudgetChoice choice = choose_by_budget(o, recipe_options, device, common, recipe);
  const Compute compute = solver_of(common, device);
  const Checkpoint source =
      is_layout(recipe_options.layout)
          ? open_to_convert(o.source, recipe, parse_io(o.io), limits_for(compute), compute)
          : open_source(o.source, ReadPath::kFast, {}, parse_io(o.io), recipe.zero_points);
  states.check_unchanged();
  Plan plan = make_plan(source, recipe, limits_for(compute));
  warn_of_small_budget(recipe_options, choice, plan.findings);
  if (o.dry_run) {
    print_findings(common, plan.findings);
    if (common.json) {
      Json json = plan_to_json(source, plan, common.jobs, device);
      json["budget"] = budget_to_json(choice);
      print_json(json);
    } else {
      print_curve(choice);
    }
    return kDone;
  }
  if (!common.json && !common.quiet) print_stdout("{}\n", summary(choice));
  return write_checkpoint(destination, o, source, plan, nullptr, common);
}

}  // namespace twofour
