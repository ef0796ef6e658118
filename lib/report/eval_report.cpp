#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lib/report/report.h"

namespace twofour {
namespace {

std::string perplexity_text(const MeanFigure& loss) {
  const double perplexity = std::exp(loss.mean);
  return with_error(perplexity, perplexity * loss.error);
}

ReportTable worst_table(const EvalFigures& f, const std::vector<std::string>& texts) {
  ReportTable table{"Worst predictions", {"window", "position", "token", "loss"}, {}};
  if (f.against) table.columns.insert(table.columns.end(), {"loss of the other", "divergence"});
  if (!texts.empty()) table.columns.push_back("text");
  for (size_t i = 0; i < f.worst.size(); ++i) {
    const EvalPlace& p = f.worst[i];
    std::vector<std::string> row{std::to_string(p.window), std::to_string(p.position),
                                 std::to_string(p.token), fmt::format("{:.3g}", p.loss)};
    if (f.against) {
      row.push_back(fmt::format("{:.3g}", p.other_loss));
      row.push_back(fmt::format("{:.3g}", p.divergence));
    }
    if (!texts.empty()) row.push_back(texts[i]);
    table.rows.push_back(std::move(row));
  }
  return table;
}

ReportCurve curve_of(const EvalFigures& f, const std::string& title, ReportUnit unit,
                     double PositionFigures::*figure) {
  ReportCurve curve{title, "position in the window", unit, {}, {}};
  for (const PositionFigures& p : f.positions) {
    curve.x.push_back(static_cast<double>(p.begin + p.end - 1) / 2);
    curve.y.push_back(p.*figure);
  }
  return curve;
}

}  // namespace

std::string with_error(double value, double error) {
  constexpr int kMost = 6;
  if (!(error > 0) || !std::isfinite(error)) return fmt::format("{:.5g}", value);
  // Two digits of the error.
  const int decimals = std::clamp(1 - static_cast<int>(std::floor(std::log10(error))), 0, kMost);
  return fmt::format("{:.{}f} ± {:.{}f}", value, decimals, error, decimals);
}

Report eval_report(const EvalFigures& f, const std::filesystem::path& model,
                   const std::filesystem::path& against, const std::vector<std::string>& worst) {
  Report report;
  report.command = "eval";
  report.subject = model.string();
  report.verdict = "perplexity " + perplexity_text(f.loss);
  report.facts = {{"perplexity", 0, false, perplexity_text(f.loss)},
                  {"predictions", static_cast<double>(f.predictions)},
                  {"windows", static_cast<double>(f.windows)}};
  report.curves.push_back(curve_of(f, "Loss, nats", ReportUnit::kNumber, &PositionFigures::loss));
  if (f.against) {
    const AgainstFigures& a = *f.against;
    report.subject = fmt::format("{} against {}", model.string(), against.string());
    report.facts.push_back({"perplexity of the other", 0, false, perplexity_text(a.loss)});
    report.facts.push_back({"ratio", 0, false, perplexity_text(a.difference)});
    report.facts.push_back({"divergence, nats", 0, false, with_error(a.divergence.mean, a.divergence.error)});
    report.facts.push_back({"99th percentile of it", 0, false, fmt::format("{:.3g}", a.divergence_p99)});
    report.facts.push_back(
        {"same most probable token", 0, false, fmt::format("{:.2f} %", 100 * a.agreement)});
    report.metrics = {
        {"relative_error", "relative error of the residual stream", ReportUnit::kShare, ReportCell::kLargest,
         true},
        {"cosine", "cosine of the residual stream", ReportUnit::kCosine, ReportCell::kSmallest, true}};
    for (size_t i = 0; i < a.layers.size(); ++i)
      report.rows.push_back(
          {fmt::format("model.layers.{}", i), {a.layers[i].relative_error, a.layers[i].cosine}});
    report.curves.push_back(
        curve_of(f, "Divergence, nats", ReportUnit::kNumber, &PositionFigures::divergence));
    report.curves.push_back(
        curve_of(f, "Same most probable token", ReportUnit::kShare, &PositionFigures::agreement));
  }
  report.tables.push_back(worst_table(f, worst));
  return report;
}

}  // namespace twofour
