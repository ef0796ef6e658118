#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/findings/finding.h"
#include "lib/metrics/weight_stats.h"

namespace twofour {

/// A known disaster. What breaks loading or gives wrong numbers in silence is an error, what is suspicious a
/// warning, what is worth knowing a note.
struct LintRule {
  const char* id;
  Severity severity;      ///< by default
  const char* what;       ///< one sentence: what is wrong, and what follows from it
  const char* fix;        ///< what the user can do
  const char* reference;  ///< URL of an incident or a statement; "" without one
  const char* why = "";   ///< why it hurts, where `what` does not say it
};

/// Every rule, in the order in which findings are reported.
std::span<const LintRule> lint_rules();
/// Its position in lint_rules(); nothing for an unknown id.
std::optional<size_t> find_lint_rule(std::string_view id);

/// By rule id, in place of the rule's own severity; nothing: the rule is off.
using LintLevels = std::map<std::string, std::optional<Severity>>;

struct LintFinding {
  size_t rule;  ///< in lint_rules()
  Severity severity;
  std::string file;  ///< within the directory; may be empty
  std::string name;  ///< tensor, module or pattern; may be empty
  std::string message;
  std::string where() const { return file.empty() || name.empty() ? file + name : file + ": " + name; }
};

struct LintReport {
  std::vector<LintFinding> findings;        ///< by rule, then natural order of file and name
  std::map<size_t, std::string> summaries;  ///< of a rule's findings together: "3 of 64 groups, ..."
  Figures figures;  ///< of every NVFP4 module that can be read; of none with headers_only
  size_t files = 0, tensors = 0;
  uint64_t bytes = 0;  ///< of tensor data, read
  double seconds = 0;
  size_t count(Severity severity) const;
  /// Whether any finding is more than a note.
  bool failed() const { return count(Severity::kWarning) + count(Severity::kError) > 0; }
};

/// Collects findings, from several threads at once. Rules that are off leave nothing.
class LintReporter {
 public:
  /// Throws Error on unknown ids.
  explicit LintReporter(const LintLevels& levels = {});
  void add(std::string_view rule, std::string file, std::string name, std::string message);
  /// What a rule's findings come to together.
  void summarize(std::string_view rule, std::string text);
  /// Names of all findings above "note" so far.
  std::set<std::string> reported_names() const;
  /// Puts everything into the report, in order.
  void move_to(LintReport& report);

 private:
  std::vector<std::optional<Severity>> levels_;  ///< by rule
  mutable std::mutex mutex_;
  std::vector<LintFinding> findings_;
  std::map<size_t, std::string> summaries_;
};

/// The report as SARIF 2.1.0, which code hosts show beside a change. File names are given below `path`. Goes
/// to `write` finding by finding: as one document 100,000 of them would take hundreds of megabytes.
void write_sarif(const LintReport& report, const std::filesystem::path& path,
                 const std::function<void(std::string_view)>& write);

}  // namespace twofour
