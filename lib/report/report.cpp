#include "lib/report/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "formats/e2m1.h"
#include "formats/e4m3.h"
#include "formats/error.h"
#include "formats/json.h"
#include "lib/base/findings/options.h"
#include "lib/base/findings/version.h"
#include "lib/base/io/file.h"
#include "lib/base/names/natural.h"
#include "lib/report/report_assets.h"
#include "lib/write/output/destination.h"

namespace twofour {
namespace {

namespace fs = std::filesystem;

/// The largest number of places of one rule, or of rows of one table, on a page. The rest is only counted, so
/// that the page stays small.
constexpr size_t kMostPlaces = 2000;
/// The mark by which an earlier report is recognized.
constexpr std::string_view kMark = "<!doctype html>\n<!-- twofour report -->\n";

constexpr const char* kUnits[] = {"share", "number", "ratio", "dB", "cosine", "count", "flag"};
constexpr const char* kCells[] = {"max", "min", "mean", "sum"};

/// The texts between the numbers in names of one kind.
Json kind_parts(const std::string& name_template) {
  Json parts = Json::array();
  for (size_t begin = 0;;) {
    const size_t end = name_template.find(kNumberMark, begin);
    parts.push_back(name_template.substr(begin, end - begin));
    if (end == name_template.npos) return parts;
    begin = end + 1;
  }
}

/// A number with as many digits as a page shows. Null for NaN, "inf" and "-inf" for infinity.
Json short_number(double value, ReportUnit unit) {
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  if (!std::isfinite(value)) return nullptr;
  if (value == std::round(value) && std::abs(value) < 1e6) return static_cast<int64_t>(value);
  return std::stod(fmt::format("{:.{}g}", value, unit == ReportUnit::kCosine ? 7 : 4));
}

/// Converts rows to JSON columns: the kind of each name, the numbers in the name, and the figures. The texts
/// of a kind are written once.
Json rows_to_json(const Report& r, std::map<std::string, size_t>& kinds) {
  Json kind = Json::array(), numbers = Json::array(), figures = Json::array();
  for (const ReportRow& row : r.rows) {
    const NumberedName name = split_numbers(row.name);
    kind.push_back(kinds.emplace(name.name_template, kinds.size()).first->second);
    numbers.push_back(name.numbers);
  }
  for (size_t m = 0; m < r.metrics.size(); ++m) {
    Json column = Json::array();
    for (const ReportRow& row : r.rows) column.push_back(short_number(row.figures[m], r.metrics[m].unit));
    figures.push_back(std::move(column));
  }
  return {{"kind", kind}, {"numbers", numbers}, {"figures", figures}};
}

Json histograms_to_json(const Report& r, std::map<std::string, size_t>& kinds) {
  Json list = Json::array();
  for (const auto& [name_template, stats] : r.histograms) {
    list.push_back({{"kind", kinds.emplace(name_template, kinds.size()).first->second},
                    {"codes", stats.codes},
                    {"scales", stats.scales}});
  }
  return list;
}

/// The values of all codes and block scales, for the axes of histograms.
Json number_formats() {
  Json codes = Json::array(), scales = Json::array();
  for (unsigned code = 0; code < 16; ++code) codes.push_back(e2m1_to_float(code));
  for (unsigned byte = 0; byte < kE4m3Nan; ++byte) scales.push_back(e4m3_to_float(byte));
  return {{"e2m1", codes}, {"e4m3", scales}};
}

Json findings_to_json(const Report& r) {
  std::vector<Json> rules;
  for (const ReportRule& rule : r.rules) {
    rules.push_back({{"id", rule.id},
                     {"severity", severity_name(rule.severity)},
                     {"what", rule.what},
                     {"why", rule.why},
                     {"todo", rule.fix},
                     {"story", rule.reference},
                     {"summary", rule.summary},
                     {"count", 0},
                     {"places", Json::array()}});
  }
  for (const ReportFinding& f : r.findings) {
    Json& rule = rules[f.rule];
    rule["count"] = rule["count"].get<size_t>() + 1;
    if (rule["places"].size() < kMostPlaces) {
      rule["places"].push_back({f.file, f.name, f.message, severity_name(f.severity)});
      if (f.consequence_count > 0) {
        rule["places"].back().push_back(f.consequences);
        rule["places"].back().push_back(f.consequence_count);
      }
    }
  }
  return rules;
}

Json tables_to_json(const Report& r) {
  Json list = Json::array();
  for (const ReportTable& t : r.tables) {
    const auto shown = t.rows.begin() + static_cast<ptrdiff_t>(std::min(t.rows.size(), kMostPlaces));
    list.push_back({{"title", t.title},
                    {"columns", t.columns},
                    {"count", t.rows.size()},
                    {"rows", std::vector(t.rows.begin(), shown)}});
  }
  return list;
}

Json curves_to_json(const Report& r) {
  Json list = Json::array();
  for (const ReportCurve& c : r.curves) {
    list.push_back({{"title", c.title},
                    {"x_title", c.x_title},
                    {"unit", kUnits[static_cast<int>(c.unit)]},
                    {"x", c.x},
                    {"y", c.y}});
  }
  return list;
}

Json report_to_json(const Report& r) {
  Json metrics = Json::array(), facts = Json::array(), names = Json::array();
  for (const ReportMetric& m : r.metrics) {
    metrics.push_back({{"id", m.id},
                       {"label", m.label},
                       {"unit", kUnits[static_cast<int>(m.unit)]},
                       {"cell", kCells[static_cast<int>(m.cell)]},
                       {"bad", m.bad}});
  }
  for (const ReportFact& f : r.facts)
    facts.push_back({{"label", f.label}, {"number", f.number}, {"bytes", f.bytes}, {"text", f.text}});
  std::map<std::string, size_t> kinds;
  const Json rows = rows_to_json(r, kinds), histograms = histograms_to_json(r, kinds);
  std::vector<const std::string*> by_index(kinds.size());
  for (const auto& [name_template, index] : kinds) by_index[index] = &name_template;
  for (const std::string* name_template : by_index) names.push_back(kind_parts(*name_template));
  return {{"command", r.command},
          {"subject", r.subject},
          {"version", fmt::format("{} ({})", version(), version_commit())},
          {"failed", r.failed},
          {"verdict", r.verdict},
          {"facts", facts},
          {"metrics", metrics},
          {"kinds", names},
          {"rows", rows},
          {"histograms", histograms},
          {"formats", number_formats()},
          {"rules", findings_to_json(r)},
          {"tables", tables_to_json(r)},
          {"curves", curves_to_json(r)}};
}

/// JSON for a script element. It contains no '<', so that no name ends the element or begins a comment.
std::string script_json(const Json& json) {
  std::string text;
  for (const char c : json_line(json)) {
    if (c == '<') {
      text += "\\u003c";
    } else {
      text += c;
    }
  }
  return text;
}

/// Replaces {{name}} in `page` by `text`.
void put_in(std::string& page, std::string_view name, const std::string& text) {
  const std::string place = fmt::format("{{{{{}}}}}", name);
  page.replace(page.find(place), place.size(), text);
}

bool is_report(const fs::path& file) {
  const InputFile input(file);
  std::string head(std::min<uint64_t>(input.size(), kMark.size()), '\0');
  input.read(0, {reinterpret_cast<uint8_t*>(head.data()), head.size()});
  return head == kMark;
}

}  // namespace

void check_report_file(const fs::path& file) {
  if (report_assets::d3_js.empty())
    throw Error(fmt::format("{}: expected a build with d3 (Debian's package node-d3), found one without",
                            options::kHtml));
  check_output_file(file, "report", is_report);
}

std::string report_html(const Report& report) {
  namespace assets = report_assets;
  std::string script;
  for (const auto& part :
       {assets::model_js, assets::heatmap_js, assets::charts_js, assets::tables_js, assets::page_js})
    script += part;
  std::string page = std::string(kMark) + std::string(assets::page_html);
  // The data comes last, so that names in it are not replaced.
  put_in(page, "style", std::string(assets::page_css));
  put_in(page, "library", std::string(assets::d3_js));
  put_in(page, "script", script);
  put_in(page, "data", script_json(report_to_json(report)));
  return page;
}

void write_report(const fs::path& file, const Report& report) {
  check_report_file(file);
  write_text(file, report_html(report));
}

}  // namespace twofour
