#include "lib/lint/lint.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "lib/base/findings/problems.h"
#include "lib/base/io/file_states.h"
#include "lib/lint/rules/baseline.h"
#include "lib/lint/rules/levels.h"
#include "lib/report/report.h"
#include "tools/cli/arguments.h"
#include "tools/cli/command.h"
#include "tools/cli/lint_options.h"
#include "tools/cli/source_options.h"
#include "tools/text/lint_text.h"

namespace twofour {
namespace {

struct LintArguments {
  std::string path, against, html, explain, profile, baseline, write_baseline;
  std::vector<std::string> levels, select, ignore;
  bool headers_only = false, sarif = false, rules = false;
};

LintLevels chosen_levels(const LintArguments& o) {
  check_lint_globs("--select", o.select);
  check_lint_globs("--ignore", o.ignore);
  return levels_of({o.profile, parse_lint_levels(o.levels), o.select, o.ignore});
}

/// A text about the amount of data that was read, and the speed.
std::string read_text_of(const LintArguments& o, const LintReport& r) {
  if (o.headers_only) return "headers only";
  return fmt::format("{} read at {:.1f} GB/s", format_bytes(r.bytes),
                     static_cast<double>(r.bytes) / 1e9 / std::max(r.seconds, 1e-9));
}

int run_lint(const LintArguments& o, const Common& common) {
  if (o.sarif && common.json) throw Error("--sarif: expected one document on stdout, found --json, too");
  if (!o.explain.empty()) return explain_lint_rules(common, o.explain);
  LintOptions options{.jobs = common.jobs, .headers_only = o.headers_only, .levels = chosen_levels(o)};
  options.against = o.against;
  options.figures = !o.html.empty();
  if (o.rules) return print_lint_rules(common, options.levels);
  if (o.path.empty())
    throw ErrorLines({"PATH: expected a checkpoint or artifact, found none", "See twofour lint --help."});
  if (!o.html.empty()) check_report_file(o.html);
  if (!o.write_baseline.empty()) check_baseline_file(o.write_baseline);
  std::optional<LintBaseline> baseline;
  if (!o.baseline.empty()) options.baseline = &baseline.emplace(read_baseline(o.baseline));
  LintReport report;
  if (!o.headers_only) refuse_remote(o.path, "lint reads all weights of it without --headers-only");
  refuse_remote(o.against, "--against reads all weights");
  const RemoteSource source(o.path);
  const FileStates states({source.path(), o.against});
  with_progress(common, [&](Progress& progress) { report = lint(source.path(), options, progress); });
  states.check_unchanged();
  if (!o.html.empty()) write_report(o.html, lint_report(report, o.path));
  if (!o.write_baseline.empty()) write_baseline(o.write_baseline, report);
  if (o.sarif) {
    write_sarif(report, o.path, write_stdout);
  } else if (common.json) {
    print_lint_json(report, o.path);
  } else if (!common.quiet) {
    print_lint_report(common, report, o.path, read_text_of(o, report));
  }
  // Findings that were just written to a baseline are known.
  return report.failed() && o.write_baseline.empty() ? kFound : kDone;
}

}  // namespace

std::function<int()> setup_lint(Arguments& args, const Common& common) {
  auto o = std::make_shared<LintArguments>();
  std::vector<std::string> profiles, rules, levels;
  for (const LintRule& rule : lint_rules()) {
    rules.emplace_back(rule.id);
    for (const char* level : {"off", "note", "warning", "error"})
      levels.push_back(rules.back() + "=" + level);
  }
  std::vector<std::string> explained = rules;
  explained.emplace_back("all");
  for (const LintProfile& profile : lint_profiles()) profiles.push_back(profile.name);
  args.option("PATH", o->path, or_url("Checkpoint or artifact directory, or one safetensors file"))
      .as_checkpoint();
  args.flag("--rules", o->rules, "List every rule and exit");
  args.option("--explain", o->explain, "Say what a rule finds, what follows and what to do; all: every rule")
      .value_name("RULE")
      .suggest(explained);
  args.option("--profile", o->profile,
              "Severities for a purpose: everything counts, what engines need, what a published checkpoint "
              "needs")
      .one_of(profiles)
      .default_text("as --rules says");
  args.option("--rule", o->levels, "Change a rule's severity: off, note, warning or error")
      .value_name("ID=LEVEL")
      .suggest(levels);
  args.option("--select", o->select, "Only these rules: ids or globs, such as index-*")
      .value_name("RULE")
      .suggest(rules)
      .separated_by(',');
  args.option("--ignore", o->ignore, "None of these rules")
      .value_name("RULE")
      .suggest(rules)
      .separated_by(',');
  args.option("--baseline", o->baseline,
              "Findings that are known and do not count: what --write-baseline or --json wrote")
      .value_name("FILE");
  args.option("--write-baseline", o->write_baseline, "Write all findings as a baseline, and end with 0")
      .value_name("FILE");
  args.flag("--headers-only", o->headers_only, "Check headers, index and configs; read no weights");
  args.option("--against", o->against,
              "Another checkpoint of the same model, to find swapped nibbles and exchanged gate and up")
      .value_name("PATH")
      .as_checkpoint();
  args.flag("--sarif", o->sarif, "Print SARIF 2.1.0, for code hosts");
  add_html_option(args, o->html);
  args.footer(
      "Checks that files, index and headers agree, that configs describe the tensors, that shapes, dtypes "
      "and "
      "scales of a module and of its siblings (gate and up, the experts of a layer) fit together, and that "
      "no "
      "block of weights is NaN, zero or damaged. One file is read as its folder's configs say. --rules lists "
      "every rule, what it means and what to do.\n"
      "A finding that follows from another is listed below it and does not count.\n"
      "Of severities the later decides: --profile, --rule, --select, --ignore. Findings of severity warning "
      "or error end with exit code 1, but for those of the baseline.");
  return [o, &common] { return run_lint(*o, common); };
}

}  // namespace twofour
