#pragma once
#include <fmt/format.h>

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
#include <utility>
#include <vector>

#include "lib/base/findings/finding.h"
#include "lib/look/metrics/weight_stats.h"

namespace twofour {

/// A rule about a known fault. Faults that break loading, or give wrong numbers in silence, are errors;
/// suspicious properties are warnings; other useful facts are notes.
struct LintRule {
  const char* id;
  Severity severity;      ///< default severity
  const char* what;       ///< one sentence: the fault
  const char* fix;        ///< the user's remedy
  const char* reference;  ///< URL of an incident or a statement; "" without one
  const char* why;        ///< one sentence: the consequence for anyone who serves the checkpoint
  bool opt_in = false;    ///< off unless a profile, --rule or --select turns it on
};

/// Every rule, in the order in which findings are reported.
std::span<const LintRule> lint_rules();
/// Its position in lint_rules(); nullopt for an unknown id.
std::optional<size_t> find_lint_rule(std::string_view id);

/// Severities by rule id that replace the rules' own; nullopt: the rule is off.
using LintLevels = std::map<std::string, std::optional<Severity>>;

/// Further facts about a finding, for the search of its cause. Each may be empty.
struct LintFacts {
  /// A property of all findings with this cause, above all a config's key with its path:
  /// "text_config.num_experts".
  std::string key{};
  std::string value{};  ///< the key's value that would resolve the finding: "64"
  std::string cause{};  ///< id of the rule whose finding about the same file, key or module is the cause
};

struct LintFinding {
  size_t rule;  ///< in lint_rules()
  Severity severity;
  std::string file;  ///< within the directory; may be empty
  std::string name;  ///< tensor, module or pattern; may be empty
  std::string message;
  LintFacts facts{};
  std::vector<LintFinding> consequences{};  ///< its consequences, in order; they have none themselves
  std::string where() const { return file.empty() || name.empty() ? file + name : file + ": " + name; }
};

/// A file within the directory, and a tensor, module, pattern or key of it. Either may be empty.
struct LintPlace {
  std::string file, name;
};

struct LintBaseline;

struct LintReport {
  std::vector<LintFinding> findings;          ///< causes only, by rule, then natural order of file and name
  std::vector<LintFinding> known{};           ///< findings of the baseline, in that order; not counted
  std::map<size_t, std::string> summaries{};  ///< a rule's findings in one line: "3 of 64 groups, ..."
  Figures figures;  ///< figures of every NVFP4 module that can be read; none with headers_only
  size_t files = 0, tensors = 0;
  uint64_t bytes = 0;  ///< bytes of tensor data that were read
  double seconds = 0;
  size_t count(Severity severity) const;  ///< counts only causes
  size_t consequences() const;
  /// True if any finding is more than a note.
  bool failed() const { return count(Severity::kWarning) + count(Severity::kError) > 0; }
};

/// A weight file that could not be read, so that its tensors seem missing.
struct LostFile {
  std::string file;                                 ///< as in the finding about it
  std::optional<std::vector<std::string>> tensors;  ///< see LintReporter::lose()
};

/// Collects findings, from several threads at once, except of rules that are off.
class LintReporter {
 public:
  /// Throws Error on unknown ids.
  explicit LintReporter(const LintLevels& levels = {});
  LintReporter(const LintReporter&) = delete;
  LintReporter& operator=(const LintReporter&) = delete;
  /// Adds a finding. One with a key counts once for each value expected of the key, however many layers and
  /// experts show it.
  void add(std::string_view rule, LintPlace at, std::string message, LintFacts facts = {});
  /// The same with a message to be formatted.
  template <class... Args>
  void add(std::string_view rule, LintPlace at, fmt::format_string<Args...> text, Args&&... args) {
    add(rule, std::move(at), fmt::format(text, std::forward<Args>(args)...));
  }
  /// Sets the summary of a rule's findings.
  void summarize(std::string_view rule, std::string text);
  /// Names of all findings above "note" so far.
  std::set<std::string> reported_names() const;
  /// Notes a weight file that could not be read, which has its own finding. `tensors`: the index's tensors in
  /// it, sorted; nullopt if unknown. Findings about missing tensors then follow from that finding.
  void lose(std::string file, std::optional<std::vector<std::string>> tensors);
  /// Sets the known findings, which must outlive the reporter. `whole`: true if every rule was checked, so
  /// that a finding that is not found is gone.
  void expect(const LintBaseline& baseline, bool whole);
  /// Puts everything into the report, in order, consequences below their causes.
  void move_to(LintReport& report);

 private:
  void sort();
  /// Moves the baseline's findings to `known`, and adds findings about entries that are gone.
  void move_known_to(std::vector<LintFinding>& known);

  std::vector<std::optional<Severity>> levels_;  ///< by rule
  mutable std::mutex mutex_;
  std::vector<LintFinding> findings_;
  std::map<size_t, std::string> summaries_;
  std::vector<LostFile> lost_;
  const LintBaseline* baseline_ = nullptr;
  bool is_whole_ = false;
};

/// The report as SARIF 2.1.0, which code hosts show beside a change. File names are given below `path`. Calls
/// `write` finding by finding, since one document of 100,000 findings would take hundreds of megabytes.
void write_sarif(const LintReport& report, const std::filesystem::path& path,
                 const std::function<void(std::string_view)>& write);

}  // namespace twofour
