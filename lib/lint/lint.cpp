#include "lib/lint/lint.h"

#include <fmt/format.h>

#include <algorithm>

#include "formats/error.h"
#include "kernels/device/check.h"
#include "lib/lint/rules.h"
#include "lib/names/natural.h"
#include "lib/threads/stopwatch.h"

namespace twofour {

LintReporter::LintReporter(const LintOptions& options) {
  for (const LintRule& rule : lint_rules()) levels_.push_back(rule.severity);
  for (const auto& [id, level] : options.levels) {
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

namespace {

/// Figures of the modules with all their bytes.
Figures lint_figures(const LintInput& input, int jobs) {
  std::map<std::string, std::vector<Nvfp4Linear>> kinds;
  for (const Nvfp4Linear& m : input.modules) {
    if (input.is_whole(m)) kinds[split_numbers(m.name).name_template].push_back(m);
  }
  const auto read = [&](size_t tensor, uint64_t offset, std::span<uint8_t> out) {
    input.read(tensor, offset, out);
  };
  Figures figures;
  for (const auto& [name_template, modules] : kinds)
    figures.add(read_module_stats(modules, input.tensors, read, jobs));
  return figures;
}

}  // namespace

LintReport lint(const std::filesystem::path& path, const LintOptions& options, Progress& progress) {
  const Stopwatch watch;
  LintReporter reporter(options);
  progress.phase = "reading headers";
  const LintInput input = open_lint_subject(path, reporter);
  lint_modules(input, options.headers_only, reporter);
  if (input.is_directory) {
    lint_config(input, reporter);
    lint_config_types(input, reporter);
    lint_group_size(input, reporter);
    lint_auxiliary_files(input, reporter);
  }
  if (!options.headers_only) {
    progress.phase = "reading weights";
    lint_scalars(input, reporter);
    lint_weights(input, options.jobs, reporter, progress);
  }
  if (!options.against.empty()) lint_against(input, options.against, reporter);
  LintReport report;
  reporter.move_to(report);
  report.bytes = progress.done;
  report.seconds = watch.seconds();
  if (options.figures && !options.headers_only) {
    progress.phase = "reading figures";
    report.figures = lint_figures(input, options.jobs);
  }
  report.files = input.shards.size();
  report.tensors = input.tensors.size();
  return report;
}

}  // namespace twofour
