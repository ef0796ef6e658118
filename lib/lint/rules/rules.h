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

#include "lib/findings/finding.h"
#include "lib/metrics/weight_stats.h"

namespace twofour {

/// A known disaster. What breaks loading or gives wrong numbers in silence is an error, what is suspicious a
/// warning, what is worth knowing a note.
struct LintRule {
  const char* id;
  Severity severity;      ///< by default
  const char* what;       ///< one sentence: what is wrong
  const char* fix;        ///< what the user can do
  const char* reference;  ///< URL of an incident or a statement; "" without one
  const char* why;        ///< one sentence: what follows for whoever serves the checkpoint
  bool opt_in = false;    ///< off unless a profile, --rule or --select turns it on
};

/// Every rule, in the order in which findings are reported.
std::span<const LintRule> lint_rules();
/// Its position in lint_rules(); nothing for an unknown id.
std::optional<size_t> find_lint_rule(std::string_view id);

/// By rule id, in place of the rule's own severity; nothing: the rule is off.
using LintLevels = std::map<std::string, std::optional<Severity>>;

/// What else is known of a finding, by which its cause is looked for. Each may be empty.
struct LintFacts {
  /// What all findings with this cause have in common, above all a config's key with its path:
  /// "text_config.num_experts".
  std::string key{};
  std::string value{};  ///< what the key would have to say for the finding to vanish: "64"
  std::string cause{};  ///< id of the rule whose finding about the same file, key or module is the cause
};

struct LintFinding {
  size_t rule;  ///< in lint_rules()
  Severity severity;
  std::string file;  ///< within the directory; may be empty
  std::string name;  ///< tensor, module or pattern; may be empty
  std::string message;
  LintFacts facts{};
  std::vector<LintFinding> consequences{};  ///< of it, in order; they have none of their own
  std::string where() const { return file.empty() || name.empty() ? file + name : file + ": " + name; }
};

/// A file within the directory, and a tensor, module, pattern or key of it. Either may be empty.
struct LintPlace {
  std::string file, name;
};

struct LintBaseline;

struct LintReport {
  std::vector<LintFinding> findings;  ///< causes only, by rule, then natural order of file and name
  std::vector<LintFinding> known{};   ///< those of the baseline, in that order; they count for nothing
  std::map<size_t, std::string> summaries{};  ///< of a rule's findings together: "3 of 64 groups, ..."
  Figures figures;  ///< of every NVFP4 module that can be read; of none with headers_only
  size_t files = 0, tensors = 0;
  uint64_t bytes = 0;  ///< of tensor data, read
  double seconds = 0;
  size_t count(Severity severity) const;  ///< of causes
  size_t consequences() const;
  /// Whether any finding is more than a note.
  bool failed() const { return count(Severity::kWarning) + count(Severity::kError) > 0; }
};

/// A weight file that could not be read, so that what it holds is missed elsewhere.
struct LostFile {
  std::string file;                                 ///< as a finding of its own names it
  std::optional<std::vector<std::string>> tensors;  ///< see LintReporter::lose()
};

/// Collects findings, from several threads at once. Rules that are off leave nothing.
class LintReporter {
 public:
  /// Throws Error on unknown ids.
  explicit LintReporter(const LintLevels& levels = {});
  LintReporter(const LintReporter&) = delete;
  LintReporter& operator=(const LintReporter&) = delete;
  /// A finding with a key counts once for each value that the key would have to have, however many layers and
  /// experts show it.
  void add(std::string_view rule, LintPlace at, std::string message, LintFacts facts = {});
  /// The same with a message to be formatted.
  template <class... Args>
  void add(std::string_view rule, LintPlace at, fmt::format_string<Args...> text, Args&&... args) {
    add(rule, std::move(at), fmt::format(text, std::forward<Args>(args)...));
  }
  /// What a rule's findings come to together.
  void summarize(std::string_view rule, std::string text);
  /// Names of all findings above "note" so far.
  std::set<std::string> reported_names() const;
  /// A weight file that could not be read, which is a finding of its own. `tensors`: what the index puts into
  /// it, sorted; nothing where that is not known. What is missed elsewhere then follows from that finding.
  void lose(std::string file, std::optional<std::vector<std::string>> tensors);
  /// Findings that are known, which must outlive the reporter. `whole`: whether every rule was looked for, so
  /// that what was not found is there no more.
  void expect(const LintBaseline& baseline, bool whole);
  /// Puts everything into the report, in order, consequences below their causes.
  void move_to(LintReport& report);

 private:
  void sort();
  /// Moves what the baseline knows to `known`, and adds what is there no more.
  void move_known_to(std::vector<LintFinding>& known);

  std::vector<std::optional<Severity>> levels_;  ///< by rule
  mutable std::mutex mutex_;
  std::vector<LintFinding> findings_;
  std::map<size_t, std::string> summaries_;
  std::vector<LostFile> lost_;
  const LintBaseline* baseline_ = nullptr;
  bool is_whole_ = false;
};

/// The report as SARIF 2.1.0, which code hosts show beside a change. File names are given below `path`. Goes
/// to `write` finding by finding: as one document 100,000 of them would take hundreds of megabytes.
void write_sarif(const LintReport& report, const std::filesystem::path& path,
                 const std::function<void(std::string_view)>& write);

}  // namespace twofour
