#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "lib/diff/diff.h"
#include "lib/eval/evaluate.h"
#include "lib/findings/finding.h"
#include "lib/inspect/inspect.h"
#include "lib/lint/lint.h"
#include "lib/validate/validate.h"

namespace twofour {

/// How a figure is written.
enum class ReportUnit { kShare, kNumber, kRatio, kDecibel, kCosine, kCount };

/// What a cell of the heat map shows of the modules that fall into it.
enum class ReportCell { kLargest, kSmallest, kMean, kSum };

struct ReportMetric {
  std::string id, label;
  ReportUnit unit;
  ReportCell cell;
  bool bad = false;  ///< more of it (of kSmallest: less) is worse, so it is drawn as a warning
};

/// A module, matrix or layer with a figure for each metric; not a number: none.
struct ReportRow {
  std::string name;
  std::vector<double> figures;
};

struct ReportRule {
  Severity severity;
  std::string id, what, fix, reference, summary;
  std::string why{};  ///< what follows from it
};

struct ReportFinding {
  size_t rule;  ///< in Report::rules
  Severity severity;
  std::string file, name, message;
  std::vector<std::string> consequences{};  ///< the first of them: "rule: where: message"
  size_t consequence_count = 0;
};

/// A line of the head: a count, bytes, or words where `text` is not empty.
struct ReportFact {
  std::string label;
  double number = 0;
  bool bytes = false;
  std::string text{};
};

struct ReportTable {
  std::string title;
  std::vector<std::string> columns;
  std::vector<std::vector<std::string>> rows;
};

/// A line over something else than layers.
struct ReportCurve {
  std::string title, x_title;
  ReportUnit unit;  ///< of y
  std::vector<double> x, y;
};

/// What a page of --html shows.
struct Report {
  std::string command, subject;
  bool failed = false;
  std::string verdict;  ///< a few words
  std::vector<ReportFact> facts;
  std::vector<ReportMetric> metrics;
  std::vector<ReportRow> rows;
  std::vector<ReportRule> rules;
  std::vector<ReportFinding> findings;
  std::map<std::string, WeightStats> histograms;  ///< by name_template, see NumberedName
  std::vector<ReportTable> tables;
  std::vector<ReportCurve> curves;
};

Report inspect_report(const InspectReport& report, const std::filesystem::path& path);
Report lint_report(const LintReport& report, const std::filesystem::path& path);
/// `source` may be empty.
Report validate_report(const ValidateReport& report, const std::filesystem::path& artifact,
                       const std::filesystem::path& source);

/// `failed`: differences that make the comparison fail.
Report diff_report(const DiffResult& result, uint64_t failed);

/// `against` may be empty; `worst` has the texts of the worst predictions, or none.
Report eval_report(const EvalFigures& figures, const std::filesystem::path& model,
                   const std::filesystem::path& against, const std::vector<std::string>& worst);

/// Throws Error where this build has no plotting library, or where `file` could not become a report: its
/// directory is missing, or the existing file is not a report. To be called before the work is done.
void check_report_file(const std::filesystem::path& file);

/// The page: one HTML file that needs nothing else. Names are data in it, never code.
std::string report_html(const Report& report);

/// Writes the page whole or not at all; only an earlier report is replaced.
void write_report(const std::filesystem::path& file, const Report& report);

}  // namespace twofour
