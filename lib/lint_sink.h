#pragma once
#include <mutex>
#include <string>
#include <string_view>

#include "lib/lint/lint.h"

namespace twofour {

/// Collects findings, from several threads at once. Rules that are off leave nothing.
class LintSink {
 public:
  /// Throws Error on unknown ids in `options.levels`.
  explicit LintSink(const LintOptions& options);
  void add(std::string_view rule, std::string file, std::string name, std::string message);
  /// What a rule's findings come to together.
  void summarize(std::string_view rule, std::string text);
  /// Puts everything into the report, in order.
  void move_to(LintReport& report);

 private:
  std::vector<std::optional<Severity>> levels_;  ///< by rule
  std::mutex mutex_;
  std::vector<LintFinding> findings_;
  std::map<size_t, std::string> summaries_;
};

}  // namespace twofour
