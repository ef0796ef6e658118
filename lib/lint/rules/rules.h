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

/// The way in which repair mends the findings of a rule.
enum class Mended {
  kNo,
  kYes,
  kDonor,  ///< with another checkpoint of the same model
  kFold,   ///< if folding is requested
};

/// A rule about a known fault. A fault is an error if it breaks loading or silently gives wrong numbers. A
/// suspicious property is a warning. Another useful fact is a note.
struct LintRule {
  const char* id;
  Severity severity;      ///< default severity
  const char* what;       ///< the fault, in one sentence
  const char* fix;        ///< what the user should do
  const char* reference;  ///< URL of an incident or a statement; "": there is none
  const char* why;        ///< the consequence for anyone who serves the checkpoint, in one sentence
  Mended mended = Mended::kNo;
  bool opt_in = false;  ///< the rule is off unless a profile, --rule or --select turns it on
};

/// Returns every rule, in the order in which findings are reported.
std::span<const LintRule> lint_rules();
/// Returns the position of a rule in lint_rules(); nullopt if the id is unknown.
std::optional<size_t> find_lint_rule(std::string_view id);

/// Severities by rule id, in place of the rules' own. nullopt: the rule is off.
using LintLevels = std::map<std::string, std::optional<Severity>>;

/// Facts about a finding that help to find its cause. Each may be empty.
struct LintFacts {
  /// A property that all findings with this cause have. Most often it is a config's key with its path:
  /// "text_config.num_experts".
  std::string key{};
  std::string value{};  ///< value of `key` that would resolve the finding: "64"
  /// Id of the rule that reported the cause: its finding is about the same file, key or module.
  std::string cause{};
  /// True if a profile must not lower the rule's severity for this finding.
  bool keeps_severity = false;
};

struct LintFinding {
  size_t rule;  ///< position in lint_rules()
  Severity severity;
  std::string file;  ///< file in the directory; may be empty
  std::string name;  ///< name of a tensor, module or pattern; may be empty
  std::string message;
  LintFacts facts{};
  /// Findings that follow from it, in order; they have no consequences themselves.
  std::vector<LintFinding> consequences{};
  std::string where() const { return file.empty() || name.empty() ? file + name : file + ": " + name; }
};

/// The place of a finding: a file of the directory, and a tensor, module, pattern or key in it. Either may be
/// empty.
struct LintPlace {
  std::string file, name;
};

struct LintBaseline;

struct LintReport {
  /// Findings that do not follow from others, sorted by rule, then in natural order by file and name.
  std::vector<LintFinding> findings;
  std::vector<LintFinding> known{};  ///< findings that the baseline has, in the same order; not counted
  std::map<size_t, std::string> summaries{};  ///< for a rule, its findings in one line: "3 of 64 groups, ..."
  Figures figures;  ///< figures of every NVFP4 module that can be read; empty with headers_only
  size_t files = 0, tensors = 0;
  uint64_t bytes = 0;  ///< bytes of tensor data that were read
  double seconds = 0;
  size_t count(Severity severity) const;  ///< consequences are not counted
  size_t consequences() const;
  /// True if any finding is a warning or an error.
  bool failed() const { return count(Severity::kWarning) + count(Severity::kError) > 0; }
};

/// A weight file that could not be read. Its tensors seem to be missing.
struct LostFile {
  std::string file;                                 ///< file in the finding about it
  std::optional<std::vector<std::string>> tensors;  ///< see LintReporter::lose()
};

/// Collects findings. Several threads may use it at once. Findings of rules that are off are dropped.
class LintReporter {
 public:
  /// Throws Error on unknown rule ids.
  explicit LintReporter(const LintLevels& levels = {});
  LintReporter(const LintReporter&) = delete;
  LintReporter& operator=(const LintReporter&) = delete;
  /// Adds a finding. If it has a key, all findings that expect the same value of the key count as one,
  /// however many layers and experts show it.
  void add(std::string_view rule, LintPlace at, std::string message, LintFacts facts = {});
  /// Adds a finding with a message that is formatted here.
  template <class... Args>
  void add(std::string_view rule, LintPlace at, fmt::format_string<Args...> text, Args&&... args) {
    add(rule, std::move(at), fmt::format(text, std::forward<Args>(args)...));
  }
  /// Drops all further findings about these modules, and about tensors below them, that follow from their
  /// unknown packing. Findings about damage of files and "unsupported-format" are kept.
  void leave_out(std::set<std::string, std::less<>> modules);
  /// Sets the line that summarizes a rule's findings.
  void summarize(std::string_view rule, std::string text);
  /// Returns the names in all warnings and errors so far.
  std::set<std::string> reported_names() const;
  /// Notes a weight file that could not be read. The file has a finding of its own, and findings about
  /// missing tensors then follow from it. `tensors` are the tensors in the file by the index, sorted;
  /// nullopt: they are unknown.
  void lose(std::string file, std::optional<std::vector<std::string>> tensors);
  /// Sets the known findings, which must outlive this object. `whole` is true if every rule is checked. Only
  /// then does a known finding that is not found count as gone.
  void expect(const LintBaseline& baseline, bool whole);
  /// Moves everything into the report, in its order, with consequences below their causes.
  void move_to(LintReport& report);

 private:
  bool is_left_out(size_t rule, std::string_view name) const;
  void sort();
  /// Moves the findings that the baseline has to `known`. Adds findings about entries of the baseline that
  /// are gone.
  void move_known_to(std::vector<LintFinding>& known);

  std::vector<std::optional<Severity>> levels_;  ///< severity of each rule; nullopt: off
  mutable std::mutex mutex_;
  std::vector<LintFinding> findings_;
  std::map<size_t, std::string> summaries_;
  std::vector<LostFile> lost_;
  std::set<std::string, std::less<>> left_out_;
  const LintBaseline* baseline_ = nullptr;
  bool is_whole_ = false;
};

/// Writes the report as SARIF 2.1.0, which code hosts show beside a change. Each finding is at a file:
/// below the working directory if `path` is, otherwise relative to `path`. Calls `write` for each finding,
/// since one document of 100,000 findings would take hundreds of megabytes.
void write_sarif(const LintReport& report, const std::filesystem::path& path,
                 const std::function<void(std::string_view)>& write);

}  // namespace twofour
