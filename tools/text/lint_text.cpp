#include "tools/text/lint_text.h"

#include <fmt/format.h>

#include <algorithm>

#include "lib/base/findings/problems.h"
#include "lib/lint/rules/explain.h"
#include "lib/lint/rules/levels.h"
#include "tools/cli/lint_options.h"

namespace twofour {
namespace {

/// The severity of a rule, or "off".
std::string_view level_of(const LintRule& rule, const LintLevels& levels) {
  const auto level = levels.find(rule.id);
  if (level == levels.end()) return rule.opt_in ? "off" : severity_name(rule.severity);
  return level->second ? severity_name(*level->second) : "off";
}

Json lint_rule_to_json(const LintRule& rule, std::string_view level) {
  return {{"id", rule.id},   {"severity", level}, {"what", rule.what},
          {"why", rule.why}, {"todo", rule.fix},  {"story", rule.reference}};
}

Json lint_finding_to_json(const LintFinding& f) {
  Json json = {{"severity", severity_name(f.severity)},
               {"rule", lint_rules()[f.rule].id},
               {"where", f.where()},
               {"message", f.message}};
  if (f.consequences.empty()) return json;
  Json below = Json::array();
  for (const LintFinding& c : f.consequences) below.push_back(lint_finding_to_json(c));
  json["consequences"] = std::move(below);
  return json;
}

std::string where_and_message(const LintFinding& f) {
  const std::string where = f.where();
  return where + (where.empty() ? "" : ": ") + f.message;
}

/// Prints the consequences of a finding, at most `shown` for each rule.
void print_consequences(const LintFinding& f, size_t shown) {
  size_t of_rule = 0;
  for (size_t i = 0; i < f.consequences.size(); ++i) {
    const LintFinding& c = f.consequences[i];
    const bool is_last = i + 1 == f.consequences.size() || f.consequences[i + 1].rule != c.rule;
    if (of_rule++ < shown) print_stdout("    so [{}] {}\n", lint_rules()[c.rule].id, where_and_message(c));
    if (is_last && of_rule > shown)
      print_stdout("    so [{}] ... and {} more\n", lint_rules()[c.rule].id, of_rule - shown);
    if (is_last) of_rule = 0;
  }
}

/// Prints a few of the findings [begin, end) of one rule. With `all`, prints all of them.
void print_rule(const LintReport& r, size_t begin, size_t end, bool all) {
  constexpr size_t kFew = 5, kFewConsequences = 2;
  const size_t shown = all ? end - begin : kFew;
  const LintFinding& first = r.findings[begin];
  const LintRule& rule = lint_rules()[first.rule];
  const auto summary = r.summaries.find(first.rule);
  print_coloured(stdout, first.severity, severity_name(first.severity));
  print_stdout(" [{}] {} {}\n", rule.id, rule.what, rule.why);
  if (summary != r.summaries.end()) print_stdout("  {}\n", summary->second);
  for (size_t i = begin; i < std::min(end, begin + shown); ++i) {
    print_stdout("  {}\n", where_and_message(r.findings[i]));
    print_consequences(r.findings[i], all ? r.findings[i].consequences.size() : kFewConsequences);
  }
  if (end - begin > shown) print_stdout("  ... and {} more (--verbose shows all)\n", end - begin - shown);
  print_stdout("  to do: {}\n", rule.fix);
  if (*rule.reference != '\0') print_stdout("  see {}\n", rule.reference);
  print_stdout("\n");
}

}  // namespace

int print_lint_rules(const Common& common, const LintLevels& levels) {
  if (common.json) {
    Json list = Json::array();
    for (const LintRule& rule : lint_rules()) list.push_back(lint_rule_to_json(rule, level_of(rule, levels)));
    print_json({{"rules", list}});
    return kDone;
  }
  for (const LintRule& rule : lint_rules()) {
    print_stdout("{:<24} {:<8} {}\n", rule.id, level_of(rule, levels), rule.what);
    for (const char* line : {rule.why, rule.fix, rule.reference})
      if (*line != '\0') print_stdout("{:34}{}\n", "", line);
  }
  return kDone;
}

int explain_lint_rules(const Common& common, const std::string& glob) {
  if (glob != "all") check_lint_globs("--explain", {glob});
  const std::vector<size_t> rules = matching_rules(glob == "all" ? "*" : glob);
  if (common.json) {
    Json list = Json::array();
    for (const size_t rule : rules) {
      list.push_back(lint_rule_to_json(lint_rules()[rule], level_of(lint_rules()[rule], {})));
    }
    print_json({{"rules", list}});
  } else if (glob == "all") {
    print_stdout("{}", Lines{lint_rules_page()});
  } else {
    for (const size_t rule : rules) {
      if (rule != rules[0]) print_stdout("\n");
      print_stdout("{}", Lines{explain_rule(lint_rules()[rule])});
    }
  }
  return kDone;
}

void print_lint_json(const LintReport& r, const std::string& path) {
  Json rules = Json::array();
  for (size_t i = 0; i < r.findings.size(); ++i) {
    const LintFinding& f = r.findings[i];
    if (i > 0 && r.findings[i - 1].rule == f.rule) continue;
    Json rule = lint_rule_to_json(lint_rules()[f.rule], severity_name(f.severity));
    rule["count"] =
        std::count_if(r.findings.begin(), r.findings.end(), [&](auto& x) { return x.rule == f.rule; });
    const auto summary = r.summaries.find(f.rule);
    if (summary != r.summaries.end()) rule["summary"] = summary->second;
    rules.push_back(std::move(rule));
  }
  const Json head = {{"path", path},
                     {"sound", !r.failed()},
                     {"errors", r.count(Severity::kError)},
                     {"warnings", r.count(Severity::kWarning)},
                     {"notes", r.count(Severity::kNote)},
                     {"consequences", r.consequences()},
                     {"files", r.files},
                     {"tensors", r.tensors},
                     {"bytes", r.bytes},
                     {"seconds", r.seconds},
                     {"rules", rules}};
  const auto list = [](const char* name, const std::vector<LintFinding>& findings) {
    return JsonList{name, findings.size(), [&](size_t i) { return lint_finding_to_json(findings[i]); }};
  };
  print_json(head, {list("findings", r.findings), list("known", r.known)});
}

void print_lint_report(const Common& common, const LintReport& r, const std::string& path,
                       const std::string& read) {
  for (size_t begin = 0, end = 0; begin < r.findings.size(); begin = end) {
    while (end < r.findings.size() && r.findings[end].rule == r.findings[begin].rule) ++end;
    if (r.findings[begin].severity == Severity::kNote && !common.verbose) continue;
    print_rule(r, begin, end, common.verbose);
  }
  const size_t notes = r.count(Severity::kNote), consequences = r.consequences();
  print_stdout("{}: {}, {}, {}{}{}{}; {} in {}, {}\n", path, counted(r.count(Severity::kError), "error"),
               counted(r.count(Severity::kWarning), "warning"), counted(notes, "note"),
               notes > 0 && !common.verbose ? " (--verbose shows notes)" : "",
               consequences > 0 ? ", " + counted(consequences, "consequence") : "",
               r.known.empty() ? "" : fmt::format(", {} known by the baseline", r.known.size()),
               counted(r.tensors, "tensor"), counted(r.files, "file"), read);
}

}  // namespace twofour
