#include "tools/text/plan_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <tuple>

#include "formats/layouts/layouts.h"
#include "lib/base/names/name_tree.h"
#include "lib/base/names/natural.h"
#include "lib/report/report.h"

namespace twofour {

namespace {

/// The decision on a tensor for --dry-run. For a recipe file, it includes the rule that decided: "rule 2
/// (experts): v7".
std::string decision_text(const Plan& plan, const OutputTensor& t) {
  const Transformation& writer = *plan.transformations[t.transformation];
  const bool labelled = std::any_of(plan.recipe.rules.begin(), plan.recipe.rules.end(),
                                    [](const Rule& r) { return !r.label.empty(); });
  if (!labelled) return fmt::format("{:<10}", writer.decision(t.part));
  const bool by_rule = std::any_of(plan.recipe.rules.begin(), plan.recipe.rules.end(),
                                   [&](const Rule& r) { return r.label == writer.rule(); });
  return fmt::format("{}: {}", by_rule ? writer.rule() : "no rule", writer.decision(t.part));
}

/// The transformation that writes a tensor.
const Transformation& writer_of(const Plan& plan, const OutputTensor& t) {
  return *plan.transformations[t.transformation];
}

}  // namespace

Json plan_to_json(const Checkpoint& source, const Plan& plan, int jobs, Device device) {
  Json files = Json::array(), tensors = Json::array(), others = Json::array();
  uint64_t written = 0;
  for (const OutputFile& f : plan.files) {
    files.push_back({{"name", f.name}, {"bytes", f.size()}});
    written += f.size();
  }
  for (const PlannedFile& f : planned_files(source, plan)) {
    others.push_back({{"name", f.name}, {"bytes", f.bytes}, {"exact", f.exact}});
  }
  std::vector<const OutputTensor*> ordered;
  for (const OutputTensor& t : plan.tensors) ordered.push_back(&t);
  std::ranges::stable_sort(ordered,
                           [](auto* a, auto* b) { return natural_less(a->info.name, b->info.name); });
  for (const OutputTensor* one : ordered) {
    const OutputTensor& t = *one;
    tensors.push_back({{"name", t.info.name},
                       {"dtype", dtype_name(t.info.dtype)},
                       {"shape", t.info.shape},
                       {"bytes", t.info.bytes()},
                       {"file", plan.files[t.file].name},
                       {"decision", writer_of(plan, t).decision(t.part)},
                       {"rule", writer_of(plan, t).rule()},
                       {"from", writer_of(plan, t).origin(source, t.part)}});
  }
  return {{"dry_run", true},
          {"layout", plan.recipe.what()},
          {"device", device_name(device)},
          {"bytes_read", plan.read_bytes},
          {"bytes_written", written},
          {"workers", plan.workers(jobs)},
          {"peak_memory", plan.peak_memory(jobs)},
          {"files", files},
          {"other_files", others},
          {"tensors", tensors},
          {"findings", findings_to_json(plan.findings)}};
}

namespace {

/// Tensors with the same decision, type and shape whose names differ in numbers only.
struct PlannedGroup {
  std::string decision, name, what;
  size_t count = 0;
  uint64_t bytes = 0;
  bool is_copy = false;
};

/// The tensors of a plan in groups: those that change, then copies, each in natural order.
std::vector<PlannedGroup> grouped(const Plan& plan) {
  std::map<std::tuple<bool, std::string, std::string>, std::vector<const OutputTensor*>> alike;
  for (const OutputTensor& t : plan.tensors) {
    const bool is_copy = writer_of(plan, t).decision(t.part) == "copy";
    alike[{is_copy, decision_text(plan, t), describe(t.info)}].push_back(&t);
  }
  std::vector<PlannedGroup> groups;
  for (const auto& [key, tensors] : alike) {
    const auto& [is_copy, decision, what] = key;
    std::vector<std::string> names;
    for (const OutputTensor* t : tensors) names.push_back(t->info.name);
    for (const auto& [name, places] : fold_names(names)) {
      groups.push_back(
          {decision, name, what, places.size(), places.size() * tensors[0]->info.bytes(), is_copy});
    }
  }
  std::stable_sort(groups.begin(), groups.end(), [](const PlannedGroup& a, const PlannedGroup& b) {
    return a.is_copy != b.is_copy ? b.is_copy : natural_less(a.name, b.name);
  });
  return groups;
}

/// The free bytes of the file system that a new directory would be on. nullopt if the system does not state
/// them.
std::optional<uint64_t> free_bytes(std::filesystem::path destination) {
  std::error_code error;
  destination = std::filesystem::absolute(destination, error).lexically_normal();
  while (!destination.empty() && !std::filesystem::exists(destination, error)) {
    if (destination == destination.parent_path()) return std::nullopt;
    destination = destination.parent_path();
  }
  const std::filesystem::space_info space = std::filesystem::space(destination, error);
  if (error) return std::nullopt;
  return space.available;
}

/// The answer of --dry-run: the bytes, the memory, and the space for them.
void print_answer(const std::string& destination, const Plan& plan, uint64_t written, int jobs) {
  size_t copied = 0;
  uint64_t copied_bytes = 0;
  for (const OutputTensor& t : plan.tensors) {
    const bool copy = writer_of(plan, t).decision(t.part) == "copy";
    copied += copy;
    copied_bytes += copy ? t.info.bytes() : 0;
  }
  print_stdout(
      "would read {} and write {}, the weights in {} ({} copied, {}); peak memory at most {} "
      "with {} on cpu\n",
      format_bytes(plan.read_bytes), format_bytes(written), counted(plan.files.size(), "file"),
      counted(copied, "tensor"), format_bytes(copied_bytes), format_bytes(plan.peak_memory(jobs)),
      counted(static_cast<uint64_t>(plan.workers(jobs)), "worker"));
  const auto space = free_bytes(destination);
  if (!space) return;
  print_stdout("{}: {} free{}\n", destination, format_bytes(*space),
               *space < written ? fmt::format(", which is {} too little", format_bytes(written - *space))
                                : ", which is enough");
}

void print_plan(const std::string& destination, const Checkpoint& source, const Plan& plan,
                const Common& common) {
  const std::vector<PlannedFile> others = planned_files(source, plan);
  uint64_t written = 0;
  for (const OutputFile& f : plan.files) written += f.size();
  for (const PlannedFile& f : others) written += f.bytes;
  print_answer(destination, plan, written, common.jobs);
  for (const PlannedGroup& g : grouped(plan)) {
    print_stdout("{} {}  {}{}  {}\n", g.decision, g.name, g.count > 1 ? fmt::format("{} x ", g.count) : "",
                 g.what, format_bytes(g.bytes));
  }
  constexpr size_t kFew = 8;
  const size_t shown = common.verbose || plan.files.size() <= kFew ? plan.files.size() : kFew - 1;
  for (size_t i = 0; i < shown; ++i)
    print_stdout("{:<10} {}  {} bytes\n", "file", plan.files[i].name, plan.files[i].size());
  if (shown < plan.files.size())
    print_stdout("{:<10} and {} more, to {}\n", "file", plan.files.size() - shown, plan.files.back().name);
  for (const PlannedFile& f : others)
    print_stdout("{:<10} {}  {}{} bytes\n", "other", f.name, f.exact ? "" : "about ", f.bytes);
}

}  // namespace

void print_planned(const std::string& destination, const Checkpoint& source, const Plan& plan, Device device,
                   const Common& common) {
  print_findings(common, plan.findings);
  if (common.json) {
    print_json(plan_to_json(source, plan, common.jobs, device));
  } else {
    print_plan(destination, source, plan, common);
  }
}

void check_budget(const RecipeOptions& o) {
  const OptionName name = o.budget.option();
  if (!o.recipe.empty()) throw Error(fmt::format("{}: expected without --recipe, found both", name));
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
  o.budget.check();
}

namespace {

/// A unit, with sums over this unit and all units before it.
struct CurvePoint {
  const PruningUnit& unit;
  double share, loss;
  bool is_pruned;
};

std::vector<CurvePoint> curve_of(const BudgetChoice& choice) {
  std::vector<CurvePoint> points;
  for (size_t i = 0; i < choice.units.size(); ++i)
    points.push_back({choice.units[i], choice.share(i + 1), choice.cost(i + 1), i < choice.pruned});
  return points;
}

Report budget_report(const BudgetChoice& choice, const std::string& command, const std::string& source) {
  Report report;
  report.command = command + " --budget";
  report.subject = source;
  report.verdict = fmt::format("{} of {} units pruned", choice.pruned, choice.units.size());
  report.facts = {{"units", static_cast<double>(choice.units.size())},
                  {"pruned", static_cast<double>(choice.pruned)},
                  {"share of bytes", 0, false, fmt::format("{:.1f} %", 100 * choice.share(choice.pruned))},
                  {"expected loss", 0, false, fmt::format("{:.4g}", choice.cost(choice.pruned))},
                  {"expected loss, dense", 0, false, fmt::format("{:.4g}", choice.dense_loss())}};
  report.metrics = {
      {"cost_per_byte", "expected loss of pruning a byte", ReportUnit::kNumber, ReportCell::kLargest, true},
      {"cost", "expected loss of pruning", ReportUnit::kNumber, ReportCell::kSum, true},
      {"dense", "expected loss of quantizing", ReportUnit::kNumber, ReportCell::kSum, true},
      {"pruned", "pruned", ReportUnit::kFlag, ReportCell::kSum, false}};
  ReportTable curve{"the curve: share of bytes and expected loss, cheapest a byte first",
                    {"share", "loss", "unit", ""},
                    {}};
  for (const CurvePoint& p : curve_of(choice)) {
    report.rows.push_back(
        {p.unit.name,
         {p.unit.cost_per_byte(), p.unit.cost(), p.unit.dense, static_cast<double>(p.is_pruned)}});
    curve.rows.push_back({fmt::format("{:.1f} %", 100 * p.share), fmt::format("{:.4g}", p.loss), p.unit.name,
                          p.is_pruned ? "pruned" : "kept"});
  }
  report.tables.push_back(std::move(curve));
  return report;
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
  return {{"share", choice.share(choice.pruned)},
          {"loss", choice.cost(choice.pruned)},
          {"dense_loss", choice.dense_loss()},
          {"units", std::move(units)}};
}

}  // namespace

std::string budget_summary(const BudgetChoice& choice) {
  return fmt::format("pruned: {} of {} units, {:.1f} % of bytes, expected loss {:.6g} beyond {:.6g} dense",
                     choice.pruned, choice.units.size(), 100 * choice.share(choice.pruned),
                     choice.cost(choice.pruned), choice.dense_loss());
}

int show_budget(const Checkpoint& source, const Plan& plan, const BudgetChoice& choice, Device device,
                const Common& common) {
  print_findings(common, plan.findings);
  if (common.json) {
    Json json = plan_to_json(source, plan, common.jobs, device);
    json["budget"] = budget_to_json(choice);
    print_json(json);
    return kDone;
  }
  print_stdout("{}\n", budget_summary(choice));
  print_stdout("{:>7} {:>12}  unit, cheapest a byte first; share of bytes and expected loss up to it\n",
               "share", "loss");
  for (const CurvePoint& p : curve_of(choice)) {
    print_stdout("{:>6.1f}% {:>12.6g}  {} {}\n", 100 * p.share, p.loss, p.is_pruned ? "prune" : "keep ",
                 printable_line(p.unit.name));
  }
  return kDone;
}

BudgetChoice take_budget(const ConversionOptions& o, const RecipeOptions& options, Device device,
                         const Common& common, Recipe& recipe) {
  check_budget(options);
  if (!options.html.empty()) check_report_file(options.html);
  BudgetChoice choice;
  with_progress(common, [&](Progress& progress) {
    choice = prune_by_budget(o.source, recipe, options.budget,
                             {common.jobs, {best_isa(), device}, parse_io(o.io)}, progress);
  });
  if (!options.html.empty()) write_report(options.html, budget_report(choice, common.command, o.source));
  return choice;
}

std::string speed_text(Device device, double seconds, uint64_t read, uint64_t written, bool verified) {
  return fmt::format("{}, {:.2f} s: {:.2f} GB/s read, {:.2f} GB/s written, {}\n", device_text(device),
                     seconds, static_cast<double>(read) / 1e9 / seconds,
                     static_cast<double>(written) / 1e9 / seconds,
                     verified ? "read back and verified" : "not verified");
}

}  // namespace twofour
