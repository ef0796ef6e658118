#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "lib/base/names/natural.h"
#include "lib/report/report.h"

namespace twofour {
namespace {

/// The linears of a group, such as all q_proj of a model, or all matrices together.
struct GroupSums {
  size_t matrices = 0;
  uint64_t weights = 0;
  EncodeError error;
  OutputLoss output;
  void add(const ModuleReport& m) {
    ++matrices;
    weights += static_cast<uint64_t>(m.shape.e * m.shape.n * m.shape.k);
    error += m.encoded->error;
    output += m.encoded->output;
  }
};

/// The last part of a name without numbers: "q_proj", "w13".
std::string group_of(const std::string& name) { return name.substr(name.rfind('.') + 1); }

std::string percent(double share) {
  return std::isfinite(share) ? fmt::format("{:.3g} %", 100 * share) : "–";
}

/// The relative error of outputs, whose square is a ratio of energies. NaN if it was not measured.
double output_error(double relative) {
  return relative > 0 ? std::sqrt(relative) : std::numeric_limits<double>::quiet_NaN();
}

ReportTable group_table(const std::map<std::string, GroupSums>& groups) {
  ReportTable table{"By group of linears",
                    {"name", "matrices", "error of weights", "error of outputs by rounding",
                     "error of outputs as chosen", "method"},
                    {}};
  for (const auto& [name, g] : groups) {
    table.rows.push_back({name, std::to_string(g.matrices), percent(g.error.relative_error()),
                          percent(output_error(g.output.rounded_relative())),
                          percent(output_error(g.output.target_relative())), g.output.method});
  }
  return table;
}

void add_heldout(const EvalFigures& f, Report& report) {
  const auto perplexity = [](const MeanFigure& loss) {
    return with_error(std::exp(loss.mean), std::exp(loss.mean) * loss.error);
  };
  report.facts.push_back({"held-out perplexity", 0, false, perplexity(f.loss)});
  if (!f.against) return;
  report.facts.push_back({"of the model", 0, false, perplexity(f.against->loss)});
  report.facts.push_back({"held-out ratio", 0, false, perplexity(f.against->difference)});
  report.facts.push_back({"held-out divergence, nats", 0, false,
                          with_error(f.against->divergence.mean, f.against->divergence.error)});
}

}  // namespace

Report compress_report(const std::vector<ModuleReport>& modules, const CompressionFacts& facts) {
  Report report;
  report.command = "compress";
  report.subject = fmt::format("{} from {}", facts.artifact.string(), facts.model.string());
  report.metrics = {
      {"output_error", "error of outputs as chosen", ReportUnit::kShare, ReportCell::kLargest, true},
      {"rounded_error", "error of outputs by rounding", ReportUnit::kShare, ReportCell::kLargest, true},
      {"relative_error", "error of weights", ReportUnit::kShare, ReportCell::kLargest, true},
      {"output_share", "squared error over that by rounding", ReportUnit::kNumber, ReportCell::kLargest,
       true}};
  GroupSums all;
  std::map<std::string, GroupSums> groups;
  for (const ModuleReport& m : modules) {
    if (!m.encoded) continue;
    all.add(m);
    groups[group_of(m.name)].add(m);
    const OutputLoss& output = m.encoded->output;
    report.rows.push_back({m.name,
                           {output_error(output.target_relative()), output_error(output.rounded_relative()),
                            m.encoded->error.relative_error(),
                            output.rounded_loss > 0 ? output.target_loss / output.rounded_loss
                                                    : std::numeric_limits<double>::quiet_NaN()}});
  }
  if (report.rows.empty()) report.metrics.clear();
  report.verdict = counted(all.matrices, "matrix", "matrices");
  report.facts = {
      {"of the model", static_cast<double>(facts.bytes_before), true},
      {"of the artifact", static_cast<double>(facts.bytes_after), true},
      {"matrices", static_cast<double>(all.matrices)},
      {"windows", static_cast<double>(facts.windows)},
      {"tokens", static_cast<double>(facts.tokens)},
      {"error of outputs by rounding", 0, false, percent(output_error(all.output.rounded_relative()))},
      {"error of outputs as chosen", 0, false, percent(output_error(all.output.target_relative()))},
      {"error of weights", 0, false, percent(all.error.relative_error())}};
  if (facts.heldout) {
    add_heldout(*facts.heldout, report);
  } else {
    report.facts.push_back({"held out", 0, false, "none: the text has no windows left"});
  }
  if (!groups.empty()) report.tables.push_back(group_table(groups));
  return report;
}

}  // namespace twofour
