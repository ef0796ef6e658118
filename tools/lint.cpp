#include "lib/lint/lint.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "lib/findings/problems.h"
#include "lib/report/report.h"
#include "tools/cli/arguments.h"
#include "tools/cli/command.h"
#include "tools/cli/suggest.h"

namespace twofour {
namespace {

struct LintArguments {
  std::string path, against, html;
  std::vector<std::string> levels;
  bool headers_only = false, sarif = false, rules = false;
};

/// "ID=off" and so on.
std::map<std::string, std::optional<Severity>> parse_levels(const std::vector<std::string>& texts) {
  std::map<std::string, std::optional<Severity>> levels;
  std::vector<std::string> ids;
  for (const LintRule& rule : lint_rules()) ids.push_back(rule.id);
  for (const std::string& text : texts) {
    const size_t equals = text.find('=');
    const std::string id = text.substr(0, equals), level = equals == text.npos ? "" : text.substr(equals + 1);
    if (!find_lint_rule(id)) {
      throw ErrorLines(
          {fmt::format("--rule {}: expected the id of a rule, found '{}'{}", text, id, did_you_mean(id, ids)),
           "See twofour lint --rules."});
    }
    if (level == "off") {
      levels[id] = std::nullopt;
    } else if (level == "note") {
      levels[id] = Severity::kNote;
    } else if (level == "warning") {
      levels[id] = Severity::kWarning;
    } else if (level == "error") {
      levels[id] = Severity::kError;
    } else {
      throw Error(fmt::format("--rule {}: expected off, note, warning or error, found '{}'", text, level));
    }
  }
  return levels;
}

Json rule_to_json(const LintRule& rule) {
  return {{"id", rule.id},
          {"severity", severity_name(rule.severity)},
          {"what", rule.what},
          {"todo", rule.fix},
          {"story", rule.reference}};
}

int print_rules(const Common& common) {
  if (common.json) {
    Json list = Json::array();
    for (const LintRule& rule : lint_rules()) list.push_back(rule_to_json(rule));
    print_json({{"rules", list}});
    return kDone;
  }
  for (const LintRule& rule : lint_rules()) {
    print_stdout("{:<24} {:<8} {}\n{:34}{}\n", rule.id, severity_name(rule.severity), rule.what, "",
                 rule.fix);
    if (*rule.reference != '\0') print_stdout("{:34}{}\n", "", rule.reference);
  }
  return kDone;
}

Json finding_to_json(const LintFinding& f) {
  return {{"severity", severity_name(f.severity)},
          {"rule", lint_rules()[f.rule].id},
          {"where", f.where()},
          {"message", f.message}};
}

void print_report_json(const LintArguments& o, const LintReport& r) {
  Json rules = Json::array();
  for (size_t i = 0; i < r.findings.size(); ++i) {
    const LintFinding& f = r.findings[i];
    if (i > 0 && r.findings[i - 1].rule == f.rule) continue;
    Json rule = rule_to_json(lint_rules()[f.rule]);
    rule["severity"] = severity_name(f.severity);
    rule["count"] =
        std::count_if(r.findings.begin(), r.findings.end(), [&](auto& x) { return x.rule == f.rule; });
    const auto summary = r.summaries.find(f.rule);
    if (summary != r.summaries.end()) rule["summary"] = summary->second;
    rules.push_back(std::move(rule));
  }
  const Json head = {{"path", o.path},
                     {"sound", !r.failed()},
                     {"errors", r.count(Severity::kError)},
                     {"warnings", r.count(Severity::kWarning)},
                     {"notes", r.count(Severity::kNote)},
                     {"files", r.files},
                     {"tensors", r.tensors},
                     {"bytes", r.bytes},
                     {"seconds", r.seconds},
                     {"rules", rules}};
  print_json(head,
             {{"findings", r.findings.size(), [&](size_t i) { return finding_to_json(r.findings[i]); }}});
}

/// One rule's findings, `shown` of them.
void print_rule(const LintReport& r, size_t begin, size_t end, size_t shown) {
  const LintFinding& first = r.findings[begin];
  const LintRule& rule = lint_rules()[first.rule];
  const auto summary = r.summaries.find(first.rule);
  print_coloured(stdout, first.severity, severity_name(first.severity));
  print_stdout(" [{}] {}\n", rule.id, rule.what);
  if (summary != r.summaries.end()) print_stdout("  {}\n", summary->second);
  for (size_t i = begin; i < std::min(end, begin + shown); ++i) {
    const std::string where = r.findings[i].where();
    print_stdout("  {}{}{}\n", where, where.empty() ? "" : ": ", r.findings[i].message);
  }
  if (end - begin > shown) print_stdout("  ... and {} more (--verbose shows all)\n", end - begin - shown);
  print_stdout("  to do: {}\n", rule.fix);
  if (*rule.reference != '\0') print_stdout("  see {}\n", rule.reference);
  print_stdout("\n");
}

void print_report(const LintArguments& o, const Common& common, const LintReport& r) {
  constexpr size_t kFew = 5;
  for (size_t begin = 0, end = 0; begin < r.findings.size(); begin = end) {
    while (end < r.findings.size() && r.findings[end].rule == r.findings[begin].rule) ++end;
    if (r.findings[begin].severity == Severity::kNote && !common.verbose) continue;
    print_rule(r, begin, end, common.verbose ? r.findings.size() : kFew);
  }
  const size_t notes = r.count(Severity::kNote);
  const std::string read = o.headers_only
                               ? "headers only"
                               : fmt::format("{} read at {:.1f} GB/s", format_bytes(r.bytes),
                                             static_cast<double>(r.bytes) / 1e9 / std::max(r.seconds, 1e-9));
  print_stdout("{}: {}, {}, {}{}; {} in {}, {}\n", o.path, counted(r.count(Severity::kError), "error"),
               counted(r.count(Severity::kWarning), "warning"), counted(notes, "note"),
               notes > 0 && !common.verbose ? " (--verbose shows notes)" : "", counted(r.tensors, "tensor"),
               counted(r.files, "file"), read);
}

int run_lint(const LintArguments& o, const Common& common) {
  if (o.sarif && common.json) throw Error("--sarif: expected one document on stdout, found --json, too");
  const LintOptions options{common.jobs, o.headers_only, parse_levels(o.levels), o.against, !o.html.empty()};
  if (o.rules) return print_rules(common);
  if (o.path.empty())
    throw ErrorLines({"PATH: expected a checkpoint or artifact, found none", "See twofour lint --help."});
  if (!o.html.empty()) check_report_file(o.html);
  LintReport report;
  with_progress(common, [&](Progress& progress) { report = lint(o.path, options, progress); });
  if (!o.html.empty()) write_report(o.html, lint_report(report, o.path));
  if (o.sarif) {
    write_sarif(report, o.path,
                [](std::string_view part) { std::fwrite(part.data(), 1, part.size(), stdout); });
  } else if (common.json) {
    print_report_json(o, report);
  } else if (!common.quiet) {
    print_report(o, common, report);
  }
  return report.failed() ? kFound : kDone;
}

}  // namespace

std::function<int()> setup_lint(Arguments& args, const Common& common) {
  auto o = std::make_shared<LintArguments>();
  args.option("PATH", o->path, "Checkpoint or artifact directory, or one safetensors file");
  args.flag("--rules", o->rules, "List every rule and exit");
  args.option("--rule", o->levels, "Change a rule's severity: off, note, warning or error")
      .value_name("ID=LEVEL");
  args.flag("--headers-only", o->headers_only, "Check headers, index and configs; read no weights");
  args.option("--against", o->against,
              "Another checkpoint of the same model, to find swapped nibbles and exchanged gate and up")
      .value_name("PATH");
  args.flag("--sarif", o->sarif, "Print SARIF 2.1.0, for code hosts");
  add_html_option(args, o->html);
  args.footer(
      "Checks that files, index and headers agree, that configs describe the tensors, that shapes, dtypes "
      "and "
      "scales of a module and of its siblings (gate and up, the experts of a layer) fit together, and that "
      "no "
      "block of weights is NaN, zero or damaged. --rules lists every rule, what it means and what to do.\n"
      "Findings of severity warning or error end with exit code 1.");
  return [o, &common] { return run_lint(*o, common); };
}

}  // namespace twofour
