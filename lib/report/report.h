#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lib/base/findings/finding.h"
#include "lib/lint/lint.h"
#include "lib/look/diff/diff.h"
#include "lib/look/inspect/inspect.h"
#include "lib/prove/validate/validate.h"
#include "lib/run/eval/evaluate.h"
#include "lib/write/plan/transformation.h"

namespace twofour {

/// The unit of a figure, which decides how it is written.
enum class ReportUnit { kShare, kNumber, kRatio, kDecibel, kCosine, kCount, kFlag };

/// The figure that a cell of the heat map shows for its modules.
enum class ReportCell { kLargest, kSmallest, kMean, kSum };

struct ReportMetric {
  std::string id, label;
  ReportUnit unit;
  ReportCell cell;
  bool bad = false;  ///< drawn as a warning, because more (for kSmallest, less) is worse
};

/// A module, matrix or layer with a figure for each metric. A missing figure is NaN.
struct ReportRow {
  std::string name;
  std::vector<double> figures;
};

struct ReportRule {
  Severity severity;
  std::string id, what, fix, reference, summary;
  std::string why{};  ///< the consequence
};

struct ReportFinding {
  size_t rule;  ///< in Report::rules
  Severity severity;
  std::string file, name, message;
  std::vector<std::string> consequences{};  ///< the first consequences: "rule: where: message"
  size_t consequence_count = 0;
};

/// A line in the head of the page. It shows `text` or, if that is empty, a count or a number of bytes.
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

/// A curve over a different axis from layers.
struct ReportCurve {
  std::string title, x_title;
  ReportUnit unit;  ///< unit of y
  std::vector<double> x, y;
};

/// The content of the page that --html writes.
struct Report {
  std::string command, subject;
  bool failed = false;
  std::string verdict;  ///< a short text
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
/// Makes the report of a validation. `source` may be empty.
Report validate_report(const ValidateReport& report, const std::filesystem::path& artifact,
                       const std::filesystem::path& source);

/// Makes the report of a comparison. `failed` is the number of differences that make the comparison fail.
Report diff_report(const DiffResult& result, uint64_t failed);

/// Makes the report of an evaluation. `against`, and `worst`, the texts of the worst predictions, may be
/// empty.
Report eval_report(const EvalFigures& figures, const std::filesystem::path& model,
                   const std::filesystem::path& against, const std::vector<std::string>& worst);

/// The parts of a report on a compression besides its matrices.
struct CompressionFacts {
  std::filesystem::path model, artifact;
  int64_t windows = 0, tokens = 0;             ///< counts of the text that gave the statistics
  uint64_t bytes_before = 0, bytes_after = 0;  ///< size of the weight files
  std::optional<EvalFigures> heldout = {};     ///< the artifact against the model, on other windows
};
Report compress_report(const std::vector<ModuleReport>& modules, const CompressionFacts& facts);

/// A figure with its standard error, both with as many digits as the error leaves: "142 ± 25".
std::string with_error(double value, double error);

/// Throws Error if this build has no plotting library, if the directory of `file` is missing, or if `file`
/// exists and is not a report. Call it before the work is done.
void check_report_file(const std::filesystem::path& file);

/// The page of a report, which is one HTML file that needs no other file. Names in it are data, never code.
std::string report_html(const Report& report);

/// Writes the page completely or not at all. Replaces an existing file only if it is a report.
void write_report(const std::filesystem::path& file, const Report& report);

}  // namespace twofour
