#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "formats/naming.h"
#include "lib/base/findings/finding.h"
#include "lib/base/names/natural.h"
#include "lib/report/report.h"

namespace twofour {
namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

/// Adds the metrics and rows of the weights that were read to a report.
void add_figures(const Figures& figures, Report& report) {
  if (figures.modules.empty()) return;
  report.metrics = {{"zero_share", "zero codes", ReportUnit::kShare, ReportCell::kMean},
                    {"share_2_4", "quads already 2:4", ReportUnit::kShare, ReportCell::kMean},
                    {"share_4_8_paired", "octets already 4:8-paired", ReportUnit::kShare, ReportCell::kMean},
                    {"fused_ratio", "unequal global scales, largest over smallest of fused linears",
                     ReportUnit::kRatio, ReportCell::kLargest, true},
                    {"global_scale", "global scale", ReportUnit::kNumber, ReportCell::kLargest},
                    {"scale_max", "largest block scale", ReportUnit::kNumber, ReportCell::kLargest},
                    {"scale_min", "smallest block scale", ReportUnit::kNumber, ReportCell::kSmallest}};
  std::vector<ModuleStats> modules = figures.modules;
  std::sort(modules.begin(), modules.end(), [](auto& x, auto& y) { return natural_less(x.name, y.name); });
  const std::vector<double> ratios = fused_ratios(modules);
  for (size_t i = 0; i < modules.size(); ++i) {
    const ModuleStats& m = modules[i];
    report.rows.push_back(
        {m.name,
         {m.zero_share, m.share_2_4, m.share_4_8_paired, ratios[i], m.global_max, m.scale_max, m.scale_min}});
  }
  report.histograms = figures.by_kind;
}

void add_findings(const Findings& findings, Report& report) {
  for (const Finding& f : findings) {
    auto rule = std::find_if(report.rules.begin(), report.rules.end(), [&](auto& r) { return r.id == f.id; });
    if (rule == report.rules.end()) {
      report.rules.push_back({f.severity, f.id, "", "", "", ""});
      rule = report.rules.end() - 1;
    }
    report.findings.push_back(
        {static_cast<size_t>(rule - report.rules.begin()), f.severity, "", f.where, f.message});
  }
}

/// Counts findings by the rows that they are about. The rows are of the module itself, of the module that a
/// tensor belongs to, or of all modules below a name. A name that has a layer but no row gets a row.
class FindingCounter {
 public:
  explicit FindingCounter(Report& report) : report_(report) {
    for (size_t i = 0; i < report.rows.size(); ++i) rows_[report.rows[i].name] = i;
    report.metrics.insert(report.metrics.begin(),
                          {"findings", "errors and warnings", ReportUnit::kCount, ReportCell::kSum, true});
    for (ReportRow& row : report.rows) row.figures.insert(row.figures.begin(), 0);
  }

  /// Counts a finding about `name`. If `fused`, only modules that engines fuse with others count among the
  /// modules below `name`.
  void count(const std::string& name, bool fused) {
    if (count_one(name) || count_one(std::string(module_of(name)))) return;
    bool below = false;
    const std::string prefix = name + ".";
    for (auto it = rows_.lower_bound(prefix); it != rows_.end() && it->first.starts_with(prefix); ++it) {
      if (fused && !fused_group(it->first)) continue;
      ++report_.rows[it->second].figures[0];
      below = true;
    }
    if (below || split_numbers(name).numbers.empty()) return;
    rows_[name] = report_.rows.size();
    report_.rows.push_back({name, std::vector<double>(report_.metrics.size(), kNone)});
    report_.rows.back().figures[0] = 1;
  }

 private:
  bool count_one(const std::string& name) {
    const auto it = rows_.find(name);
    if (it == rows_.end()) return false;
    ++report_.rows[it->second].figures[0];
    return true;
  }

  Report& report_;
  std::map<std::string, size_t> rows_;
};

/// Adds the number of layers that were run, and a table of the layers that could not be run.
void add_coverage(const std::string& label, size_t run, const LayerCoverage& c, Report& report) {
  if (c.found == 0) return;
  std::string text = fmt::format("{} of {}", run, c.found);
  if (!c.not_run.empty()) text += fmt::format(", {} not run", c.not_run.size());
  if (c.not_sampled > 0) text += fmt::format(", {} not in the sample", c.not_sampled);
  report.facts.push_back({label, 0, false, std::move(text)});
  if (c.not_run.empty()) return;
  ReportTable table{label + ": not run, and why", {"name", "why"}, {}};
  for (const LayerCoverage::NotRun& l : c.not_run) table.rows.push_back({l.block, l.why});
  report.tables.push_back(std::move(table));
}

std::vector<double> error_figures(const Quality& q, double zero_share) {
  return {q.relative_error(), q.snr_db(), q.cosine(), 1 - q.retained_energy(), q.tied_share(), zero_share};
}

/// The first consequences of a finding, one per line.
std::vector<std::string> first_consequences(const LintFinding& f) {
  constexpr size_t kMost = 100;
  std::vector<std::string> lines;
  for (size_t i = 0; i < std::min(f.consequences.size(), kMost); ++i) {
    const LintFinding& c = f.consequences[i];
    const std::string where = c.where();
    lines.push_back(
        fmt::format("{}: {}{}{}", lint_rules()[c.rule].id, where, where.empty() ? "" : ": ", c.message));
  }
  return lines;
}

bool is_equal(const DiffEntry& e) { return e.cls == DiffClass::kEqual || e.cls == DiffClass::kReciprocal; }

/// The report's text about an entry that differs.
std::string difference_text(const DiffEntry& e) {
  if (e.cls == DiffClass::kAdded || e.cls == DiffClass::kRemoved) return "";
  if (!e.has_figures()) return e.message;
  const std::string relative = std::isfinite(e.error.relative_error())
                                   ? fmt::format("relative error {:.3g} %, SNR {:.2f} dB",
                                                 100 * e.error.relative_error(), e.error.snr_db())
                                   : "relative error infinite, because A is 0";
  std::string text = fmt::format("{} of {} values differ, {}, largest {:.3g}", e.error.beyond,
                                 e.error.weights, relative, e.error.max_abs);
  const WeightDifference& first = e.error.first;
  if (first.e < 0) return text;
  const auto value = [](float rounded, const ElementValue* exact) {
    if (!exact) return fmt::format("{}", rounded);
    return std::visit([](auto v) { return fmt::format("{}", v); }, *exact);
  };
  const std::string expert = e.expert >= 0 ? fmt::format("expert {}, ", first.e) : "";
  return text + fmt::format("; first at {}row {}, column {}: {} in A, {} in B", expert, first.n, first.k,
                            value(first.expected, e.first ? &(*e.first)[0] : nullptr),
                            value(first.found, e.first ? &(*e.first)[1] : nullptr));
}

}  // namespace

Report inspect_report(const InspectReport& r, const std::filesystem::path& path) {
  Report report;
  report.command = "inspect";
  report.subject = path.string();
  report.verdict = r.what;
  Figures figures;
  for (const ModuleGroup& g : r.modules) {
    if (g.stats) figures.add({*g.stats, g.members});
  }
  report.facts = {{"tensors", static_cast<double>(r.tensor_count)},
                  {"files", static_cast<double>(r.file_count)},
                  {"of tensors", static_cast<double>(r.data_bytes), true},
                  {"NVFP4 modules", static_cast<double>(figures.modules.size())}};
  add_figures(figures, report);
  add_findings(r.findings, report);
  ReportTable sizes{"What convert takes by default", {"as", "bytes"}, {}};
  if (!r.layout_bytes.empty()) sizes.rows.push_back({"now", std::to_string(r.default_set_bytes)});
  for (const auto& [layout, bytes] : r.layout_bytes) sizes.rows.push_back({layout, std::to_string(bytes)});
  if (!sizes.rows.empty()) report.tables.push_back(std::move(sizes));
  ReportTable tensors{"Tensors", {"name", "type and shape", "count", "bytes"}, {}};
  for (const TensorGroup& g : r.tensors)
    tensors.rows.push_back(
        {g.name, describe(g.dtype, g.shape), std::to_string(g.count), std::to_string(g.bytes)});
  report.tables.push_back(std::move(tensors));
  return report;
}

Report lint_report(const LintReport& r, const std::filesystem::path& path) {
  Report report;
  const size_t errors = r.count(Severity::kError), warnings = r.count(Severity::kWarning);
  report.command = "lint";
  report.subject = path.string();
  report.failed = r.failed();
  report.verdict = r.failed() ? counted(errors, "error") + ", " + counted(warnings, "warning") : "sound";
  report.facts = {{"errors", static_cast<double>(errors)},
                  {"warnings", static_cast<double>(warnings)},
                  {"notes", static_cast<double>(r.count(Severity::kNote))},
                  {"tensors", static_cast<double>(r.tensors)},
                  {"files", static_cast<double>(r.files)},
                  {"read", static_cast<double>(r.bytes), true}};
  add_figures(r.figures, report);
  if (r.consequences() > 0) report.facts.push_back({"consequences", static_cast<double>(r.consequences())});
  if (!r.known.empty())
    report.facts.push_back({"known by the baseline", static_cast<double>(r.known.size())});
  FindingCounter counter(report);
  for (size_t i = 0; i < r.findings.size(); ++i) {
    const LintFinding& f = r.findings[i];
    if (i == 0 || r.findings[i - 1].rule != f.rule) {
      const LintRule& rule = lint_rules()[f.rule];
      const auto summary = r.summaries.find(f.rule);
      report.rules.push_back({f.severity, rule.id, rule.what, rule.fix, rule.reference,
                              summary == r.summaries.end() ? "" : summary->second, rule.why});
    }
    report.findings.push_back({report.rules.size() - 1, f.severity, f.file, f.name, f.message,
                               first_consequences(f), f.consequences.size()});
    if (f.severity == Severity::kNote || f.name.empty()) continue;
    counter.count(f.name, report.rules.back().id.starts_with("unequal-"));
  }
  return report;
}

Report validate_report(const ValidateReport& r, const std::filesystem::path& artifact,
                       const std::filesystem::path& source) {
  Report report;
  report.command = "validate";
  report.subject = artifact.string();
  report.failed = !r.differences.empty();
  report.verdict =
      report.failed ? counted(r.differences.size(), "difference") : sound_verdict(r, !source.empty());
  report.facts = {{"tensors", static_cast<double>(r.tensors)},
                  {"checked", static_cast<double>(r.bytes), true},
                  {"source", 0, false, source.string()},
                  {"source tensors", static_cast<double>(r.source_tensors)},
                  {"of the source", static_cast<double>(r.source_bytes), true}};
  if (source.empty()) report.facts.resize(2);
  report.metrics = {{"relative_error", "relative error", ReportUnit::kShare, ReportCell::kLargest, true},
                    {"snr_db", "SNR", ReportUnit::kDecibel, ReportCell::kSmallest, true},
                    {"cosine", "cosine", ReportUnit::kCosine, ReportCell::kSmallest, true},
                    {"lost_energy", "energy lost", ReportUnit::kShare, ReportCell::kLargest, true},
                    {"tied_share", "quads decided by a tie", ReportUnit::kShare, ReportCell::kMean},
                    {"zero_share", "zero codes of the source", ReportUnit::kShare, ReportCell::kMean}};
  for (const WeightReport& w : r.weights)
    report.rows.push_back({w.target, error_figures(w.quality, w.zero_share)});
  for (const ValueReport& v : r.values)
    report.rows.push_back(
        {v.module, {v.error.relative_error(), v.error.snr_db(), v.error.cosine(), kNone, kNone, kNone}});
  for (const LayerReport& l : r.layers)
    report.rows.push_back({l.block + " (output)", {l.relative_error, kNone, l.cosine, kNone, kNone, kNone}});
  if (report.rows.empty()) report.metrics.clear();
  add_coverage("layers run", r.layers.size(), r.coverage, report);
  add_coverage("layers run on the device", r.device_layers.size(), r.device_coverage, report);
  add_findings(r.differences, report);
  add_findings(r.notes, report);
  return report;
}

Report diff_report(const DiffResult& r, uint64_t failed) {
  Report report;
  report.command = "diff";
  report.subject = fmt::format("{} and {}", r.a, r.b);
  report.failed = failed > 0;
  const auto equal = static_cast<size_t>(r.count(DiffClass::kEqual) + r.count(DiffClass::kReciprocal));
  report.verdict = report.failed               ? counted(failed, "difference")
                   : equal == r.entries.size() ? "equal as numbers"
                                               : "no counted difference";
  report.facts = {{"A", 0, false, r.a_what}, {"B", 0, false, r.b_what}};
  for (size_t i = 0; i < kDiffClasses; ++i) {
    const auto cls = static_cast<DiffClass>(i);
    if (r.count(cls) > 0) report.facts.push_back({diff_class_name(cls), static_cast<double>(r.count(cls))});
  }
  report.metrics = {
      {"relative_error", "relative error", ReportUnit::kShare, ReportCell::kLargest, true},
      {"snr_db", "SNR", ReportUnit::kDecibel, ReportCell::kSmallest, true},
      {"cosine", "cosine", ReportUnit::kCosine, ReportCell::kSmallest, true},
      {"max_abs", "largest difference", ReportUnit::kNumber, ReportCell::kLargest, true},
      {"different_share", "values that differ", ReportUnit::kShare, ReportCell::kLargest, true},
      {"differences", "matrices and tensors that are not equal", ReportUnit::kCount, ReportCell::kSum, true}};
  std::map<DiffClass, size_t> rules;
  for (const DiffEntry& e : r.entries) {
    const double count = is_equal(e) ? 0 : 1;
    std::vector<double> figures = {kNone, kNone, kNone, kNone, kNone, count};
    if (is_equal(e)) figures = {0, kNone, 1, 0, 0, count};
    if (e.has_figures()) {
      figures = {
          e.error.relative_error(),
          e.error.snr_db(),
          e.error.cosine(),
          e.error.max_abs,
          static_cast<double>(e.error.beyond) / static_cast<double>(std::max<uint64_t>(1, e.error.weights)),
          count};
    }
    report.rows.push_back({e.name, std::move(figures)});
    if (is_equal(e)) continue;
    const Severity severity = e.cls == DiffClass::kWithin ? Severity::kNote : Severity::kError;
    const auto [rule, fresh] = rules.emplace(e.cls, report.rules.size());
    if (fresh) report.rules.push_back({severity, diff_class_name(e.cls), "", "", "", ""});
    report.findings.push_back({rule->second, severity, "", e.name, difference_text(e)});
  }
  add_findings(r.findings, report);
  if (!r.config.empty()) {
    ReportTable table{"Keys of configs", {"file", "key", "A", "B", ""}, {}};
    for (const ConfigDifference& d : r.config) {
      const auto shown = [](const std::string& value) { return value.empty() ? "none" : value; };
      table.rows.push_back({d.file, d.key, shown(d.a), shown(d.b), d.counts ? "counts" : ""});
    }
    report.tables.push_back(std::move(table));
  }
  if (!r.moved.empty()) {
    ReportTable table{"What moved", {"name", "how", "what"}, {}};
    for (const MovedWeights& m : r.moved) table.rows.push_back({m.name, moved_name(m.how), m.text});
    report.tables.push_back(std::move(table));
  }
  return report;
}

}  // namespace twofour
