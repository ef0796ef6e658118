#include <fmt/format.h>

#include <algorithm>

#include "formats/error.h"
#include "kernels/device/check.h"
#include "lib/lint/rules/rules.h"
#include "lib/names/natural.h"

namespace twofour {

LintReporter::LintReporter(const LintLevels& levels) {
  for (const LintRule& rule : lint_rules()) levels_.push_back(rule.severity);
  for (const auto& [id, level] : levels) {
    const auto rule = find_lint_rule(id);
    if (!rule) throw Error(fmt::format("--rule: expected the id of a rule, found '{}'", id));
    levels_[*rule] = level;
  }
}

void LintReporter::add(std::string_view rule, std::string file, std::string name, std::string message) {
  const auto at = find_lint_rule(rule);
  check(at.has_value(), "a rule of the table");
  if (!levels_[*at]) return;
  const std::lock_guard lock(mutex_);
  findings_.push_back({*at, *levels_[*at], std::move(file), std::move(name), std::move(message)});
}

void LintReporter::summarize(std::string_view rule, std::string text) {
  const auto at = find_lint_rule(rule);
  check(at.has_value(), "a rule of the table");
  const std::lock_guard lock(mutex_);
  if (levels_[*at]) summaries_[*at] = std::move(text);
}

std::set<std::string> LintReporter::reported_names() const {
  const std::lock_guard lock(mutex_);
  std::set<std::string> names;
  for (const LintFinding& f : findings_) {
    if (f.severity != Severity::kNote) names.insert(f.name);
  }
  return names;
}

void LintReporter::move_to(LintReport& report) {
  std::sort(findings_.begin(), findings_.end(), [](const LintFinding& a, const LintFinding& b) {
    if (a.rule != b.rule) return a.rule < b.rule;
    if (a.file != b.file) return natural_less(a.file, b.file);
    if (a.name != b.name) return natural_less(a.name, b.name);
    return a.message < b.message;
  });
  report.findings = std::move(findings_);
  report.summaries = std::move(summaries_);
}

size_t LintReport::count(Severity severity) const {
  return static_cast<size_t>(std::count_if(findings.begin(), findings.end(),
                                           [&](const LintFinding& f) { return f.severity == severity; }));
}

}  // namespace twofour
