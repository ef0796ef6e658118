#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "formats/error.h"
#include "formats/module_names.h"
#include "kernels/device/check.h"
#include "lib/base/findings/options.h"
#include "lib/base/names/natural.h"
#include "lib/lint/rules/baseline.h"
#include "lib/lint/rules/causes.h"
#include "lib/lint/rules/levels.h"

namespace twofour {

LintReporter::LintReporter(const LintLevels& levels) {
  for (const LintRule& rule : lint_rules()) {
    levels_.push_back(rule.opt_in ? std::nullopt : std::optional(rule.severity));
  }
  for (const auto& [id, level] : levels) {
    const auto rule = find_lint_rule(id);
    if (!rule) throw Error(fmt::format("{}: expected the id of a rule, found '{}'", options::kRule, id));
    levels_[*rule] = level;
  }
}

namespace {

/// Rules about files and bytes, which hold for codes in any packing, as globs.
constexpr std::string_view kOfAnyPacking[] = {
    "unsupported-format", "two-weights", "duplicate-tensor", "data-holes",
    "file-size",          "not-finite",  "index-*",          "manifest-hash"};

bool holds_for_any_packing(size_t rule) {
  static const std::set<size_t> rules = [] {
    std::set<size_t> all;
    for (const std::string_view glob : kOfAnyPacking) {
      for (const size_t matching : matching_rules(glob)) all.insert(matching);
    }
    return all;
  }();
  return rules.contains(rule);
}

}  // namespace

void LintReporter::leave_out(std::set<std::string, std::less<>> modules) {
  const std::lock_guard lock(mutex_);
  left_out_ = std::move(modules);
}

bool LintReporter::is_left_out(size_t rule, std::string_view name) const {
  if (left_out_.empty() || name.empty() || holds_for_any_packing(rule)) return false;
  return any_above(name, [&](std::string_view above) { return left_out_.find(above) != left_out_.end(); });
}

void LintReporter::add(std::string_view rule, LintPlace place, std::string message, LintFacts facts) {
  const auto at = find_lint_rule(rule);
  check(at.has_value(), "a rule of the table");
  if (!levels_[*at]) return;
  const std::lock_guard lock(mutex_);
  if (is_left_out(*at, place.name)) return;
  const Severity own = lint_rules()[*at].severity;
  findings_.push_back({*at,
                       facts.keeps_severity ? std::max(*levels_[*at], own) : *levels_[*at],
                       std::move(place.file),
                       std::move(place.name),
                       std::move(message),
                       std::move(facts),
                       {}});
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

void LintReporter::lose(std::string file, std::optional<std::vector<std::string>> tensors) {
  const std::lock_guard lock(mutex_);
  lost_.push_back({std::move(file), std::move(tensors)});
}

void LintReporter::expect(const LintBaseline& baseline, bool whole) {
  baseline_ = &baseline;
  is_whole_ = whole;
}

void LintReporter::sort() {
  std::sort(findings_.begin(), findings_.end(), [](const LintFinding& a, const LintFinding& b) {
    if (a.rule != b.rule) return a.rule < b.rule;
    if (a.file != b.file) return natural_less(a.file, b.file);
    if (a.name != b.name) return natural_less(a.name, b.name);
    return a.message < b.message;
  });
}

void LintReporter::move_known_to(std::vector<LintFinding>& known) {
  std::set<std::string> seen;
  std::vector<LintFinding> fresh;
  for (LintFinding& f : findings_) {
    std::string identity = finding_identity(lint_rules()[f.rule].id, f.where(), f.message);
    const bool is_known = baseline_->entries.contains(identity);
    (is_known ? known : fresh).push_back(std::move(f));
    if (is_known) seen.insert(std::move(identity));
  }
  findings_ = std::move(fresh);
  if (!is_whole_) return;
  for (const auto& [identity, entry] : baseline_->entries) {
    const auto rule = find_lint_rule(entry.rule);
    if (seen.contains(identity) || (rule && !levels_[*rule])) continue;
    add("baseline-stale", {"", entry.where}, "expected {} as {} says ({}), found it no more", entry.rule,
        baseline_->file, entry.message);
  }
}

void LintReporter::move_to(LintReport& report) {
  sort();
  if (baseline_ != nullptr) {
    move_known_to(report.known);
    sort();
  }
  fold_consequences(findings_, lost_);
  report.findings = std::move(findings_);
  report.summaries = std::move(summaries_);
}

size_t LintReport::count(Severity severity) const {
  return static_cast<size_t>(std::count_if(findings.begin(), findings.end(),
                                           [&](const LintFinding& f) { return f.severity == severity; }));
}

size_t LintReport::consequences() const {
  size_t count = 0;
  for (const LintFinding& f : findings) count += f.consequences.size();
  return count;
}

}  // namespace twofour
