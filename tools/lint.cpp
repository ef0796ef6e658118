#include "lib/lint/lint.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "lib/error_lines.h"
#include "lib/report/report.h"
#include "tools/cli/command.h"
#include "tools/cli/suggest.h"

namespace twofour {
namespace {

struct Options {
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
          {"todo", rule.todo},
          {"story", rule.story}};
}

int print_rules(const Common& common) {
  if (common.json) {
    Json list = Json::array();
    for (const LintRule& rule : lint_rules()) list.push_back(rule_to_json(rule));
    print_json({{"rules", list}});
    return kDone;
  }
  for (const LintRule& rule : lint_rules()) {
    put("{:<24} {:<8} {}\n{:34}{}\n", rule.id, severity_name(rule.severity), rule.what, "", rule.todo);
    if (*rule.story != '\0') put("{:34}{}\n", "", rule.story);
  }
  return kDone;
}

Json finding_to_json(const LintFinding& f) {
  return {{"rule", lint_rules()[f.rule].id},
          {"severity", severity_name(f.severity)},
          {"file", f.file},
          {"name", f.name},
          {"message", f.message}};
}

void print_report_json(const Options& o, const LintReport& r) {
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
  put("{} [{}] {}\n", severity_name(first.severity), rule.id, rule.what);
  if (summary != r.summaries.end()) put("  {}\n", summary->second);
  for (size_t i = begin; i < std::min(end, begin + shown); ++i) {
    const std::string where = r.findings[i].where();
    put("  {}{}{}\n", where, where.empty() ? "" : ": ", r.findings[i].message);
  }
  if (end - begin > shown) put("  ... and {} more (--verbose shows all)\n", end - begin - shown);
  put("  to do: {}\n", rule.todo);
  if (*rule.story != '\0') put("  see {}\n", rule.story);
  put("\n");
}

void print_report(const Options& o, const Common& common, const LintReport& r) {
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
  put("{}: {}, {}, {}{}; {} in {}, {}\n", o.path, counted(r.count(Severity::kError), "error"),
      counted(r.count(Severity::kWarning), "warning"), counted(notes, "note"),
      notes > 0 && !common.verbose ? " (--verbose shows notes)" : "", counted(r.tensors, "tensor"),
      counted(r.files, "file"), read);
}

int run(const Options& o, const Common& common) {
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

std::function<int()> setup_lint(CLI::App& app, const Common& common) {
  auto o = std::make_shared<Options>();
  app.add_option("PATH", o->path, "Checkpoint or artifact directory, or one safetensors file");
  app.add_flag("--rules", o->rules, "List every rule instead");
  app.add_option("--rule", o->levels, "Change a rule's severity: ID=off, note, warning or error")
      ->take_all()
      ->allow_extra_args(false);
  app.add_flag("--headers-only", o->headers_only, "Headers, index and configs; no weights");
  app.add_option("--against", o->against,
                 "A checkpoint of the same model: finds swapped nibbles, gates and ups")
      ->type_name("PATH");
  app.add_flag("--sarif", o->sarif, "SARIF 2.1.0 on stdout, for code hosts");
  add_html_option(app, o->html);
  return [o, &common] { return run(*o, common); };
}

}  // namespace twofour
