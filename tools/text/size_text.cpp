#include "tools/text/size_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>

#include "tools/console/print.h"

namespace twofour {
namespace {

/// The points of the curve to print: the first, the first of each further eighth of a bit, and the last.
std::vector<SizeChoice::Point> few_points(const SizeChoice& choice) {
  std::vector<SizeChoice::Point> points;
  double next = -1;
  for (const SizeChoice::Point& p : choice.curve) {
    if (p.bits < next && &p != &choice.curve.back()) continue;
    points.push_back(p);
    next = (std::floor(p.bits * 8) + 1) / 8;
  }
  return points;
}

/// The expected loss of a choice. Predictions by the Hessian alone are no losses of the model.
std::string expected_text(const SizeChoice& choice, double loss) {
  if (choice.by == LossBy::kFisher) return fmt::format("{:.4g} to {:.4g}", loss, 2 * loss);
  return fmt::format("{:.4g}", loss);
}

const char* expected_title(const SizeChoice& choice) {
  return choice.by == LossBy::kFisher ? "expected KL" : "relative loss of outputs";
}

size_t units_in(const SizeChoice& choice, size_t format) {
  size_t count = 0;
  for (size_t i = 0; i < choice.units.size(); ++i) count += choice.option(i).format == format;
  return count;
}

Json point_to_json(const SizeChoice::Point& point) {
  return {{"bits", point.bits}, {"bytes", point.bytes}, {"loss", point.loss}};
}

}  // namespace

std::string size_summary(const SizeChoice& choice) {
  std::vector<std::string> formats;
  for (size_t i = 0; i < choice.menu.size(); ++i) {
    if (const size_t count = units_in(choice, i); count > 0)
      formats.push_back(fmt::format("{} {:.1f} %", choice.menu[i], 100 * choice.share(i)));
  }
  return fmt::format("chosen by {}: {:.4g} bits a weight, {} of tensors, {} {}: {}", choice.predictor,
                     choice.at.bits, format_bytes(choice.at.bytes), expected_title(choice),
                     expected_text(choice, choice.at.loss), fmt::join(formats, ", "));
}

std::string size_curve_text(const SizeChoice& choice) {
  std::string text = fmt::format("{:>7} {:>15}  {}\n", "bits", "bytes", expected_title(choice));
  for (const SizeChoice::Point& p : few_points(choice))
    text += fmt::format("{:>7.3f} {:>15}  {}\n", p.bits, p.bytes, expected_text(choice, p.loss));
  text += fmt::format("{:<8} {:>12}  unit, with the loss in its format\n", "format", "loss");
  for (size_t i = 0; i < choice.units.size(); ++i) {
    const SizedUnit::Option& o = choice.option(i);
    text += fmt::format("{:<8} {:>12.4g}  {}\n", choice.menu[o.format], o.loss,
                        printable_line(choice.units[i].name));
  }
  return text;
}

Json size_choice_to_json(const SizeChoice& choice) {
  Json curve = Json::array(), units = Json::array();
  for (const SizeChoice::Point& p : choice.curve) curve.push_back(point_to_json(p));
  for (size_t i = 0; i < choice.units.size(); ++i) {
    const SizedUnit& unit = choice.units[i];
    Json options = Json::array();
    for (const SizedUnit::Option& o : unit.options)
      options.push_back(
          {{"format", choice.menu[o.format]}, {"bits", o.bits}, {"bytes", o.bytes}, {"loss", o.loss}});
    units.push_back({{"name", unit.name},
                     {"modules", unit.modules},
                     {"weights", unit.weights},
                     {"format", choice.menu[choice.option(i).format]},
                     {"options", std::move(options)}});
  }
  return {{"bits", choice.at.bits},
          {"bytes", choice.at.bytes},
          {"loss", choice.at.loss},
          {"predictor", choice.predictor},
          {"is_divergence", choice.by == LossBy::kFisher},
          {"is_best", choice.is_best},
          {"curve", std::move(curve)},
          {"units", std::move(units)}};
}

void add_size_choice(const SizeChoice& choice, Report& report) {
  report.facts.push_back({"bits a weight", 0, false, fmt::format("{:.4g}", choice.at.bits)});
  report.facts.push_back({"bytes of tensors", static_cast<double>(choice.at.bytes), true});
  report.facts.push_back({expected_title(choice), 0, false, expected_text(choice, choice.at.loss)});
  report.facts.push_back({"predicted by", 0, false, choice.predictor});
  ReportTable formats{"formats", {"format", "units", "share of weights", "loss"}, {}};
  for (size_t format = 0; format < choice.menu.size(); ++format) {
    double loss = 0;
    for (size_t i = 0; i < choice.units.size(); ++i)
      loss += choice.option(i).format == format ? choice.option(i).loss : 0;
    formats.rows.push_back({choice.menu[format], std::to_string(units_in(choice, format)),
                            fmt::format("{:.1f} %", 100 * choice.share(format)),
                            fmt::format("{:.4g}", loss)});
  }
  report.tables.push_back(std::move(formats));
  ReportTable units{"the choice", {"unit", "format", "bits a weight", "loss"}, {}};
  for (size_t i = 0; i < choice.units.size(); ++i) {
    const SizedUnit::Option& o = choice.option(i);
    const double bits = static_cast<double>(o.bits) / static_cast<double>(choice.units[i].weights);
    units.rows.push_back({choice.units[i].name, choice.menu[o.format], fmt::format("{:.4g}", bits),
                          fmt::format("{:.4g}", o.loss)});
  }
  report.tables.push_back(std::move(units));
  ReportCurve curve{
      fmt::format("{} by size", expected_title(choice)), "bits a weight", ReportUnit::kNumber, {}, {}};
  for (const SizeChoice::Point& p : choice.curve) curve.x.push_back(p.bits), curve.y.push_back(p.loss);
  report.curves.push_back(std::move(curve));
}

Report size_report(const SizeChoice& choice, const std::string& command, const std::string& source) {
  Report report;
  report.command = command;
  report.subject = source;
  report.verdict = fmt::format("{:.4g} bits a weight", choice.at.bits);
  report.metrics = {{"loss", expected_title(choice), ReportUnit::kNumber, ReportCell::kSum, true},
                    {"bits", "bits a weight", ReportUnit::kNumber, ReportCell::kMean, false}};
  for (size_t i = 0; i < choice.units.size(); ++i) {
    const SizedUnit::Option& o = choice.option(i);
    report.rows.push_back(
        {choice.units[i].name,
         {o.loss, static_cast<double>(o.bits) / static_cast<double>(choice.units[i].weights)}});
  }
  add_size_choice(choice, report);
  return report;
}

}  // namespace twofour
