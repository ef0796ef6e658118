#include "lib/lint/rules/explain.h"

#include <fmt/format.h>

#include "lib/base/findings/options.h"
#include "lib/lint/rules/levels.h"

namespace twofour {
namespace {

std::string level_name(const std::optional<Severity>& level) {
  return level ? std::string(severity_name(*level)) : "off";
}

/// Returns the severities of a rule: "warning; strict: error, serve: note". A profile is named only if it
/// differs.
std::string severities_of(const LintRule& rule) {
  const std::string own = level_name(rule.opt_in ? std::nullopt : std::optional(rule.severity));
  std::string text = own, comma = "; ";
  for (const LintProfile& profile : lint_profiles()) {
    const LintLevels levels = levels_of({.profile = profile.name});
    const auto at = levels.find(rule.id);
    if (at == levels.end() || level_name(at->second) == own) continue;
    text += fmt::format("{}{}: {}", comma, profile.name, level_name(at->second));
    comma = ", ";
  }
  return text;
}

/// Escapes a text for Markdown: names of files and keys in rules must not become markup.
std::string escaped(std::string_view text) {
  std::string safe;
  for (const char c : text) {
    if (std::string_view("*_[<\\").find(c) != std::string_view::npos) safe += '\\';
    safe += c;
  }
  return safe;
}

const char* mended_text(Mended mended) {
  switch (mended) {
    case Mended::kYes:
      return "yes";
    case Mended::kDonor:
      return "yes, with a donor";
    case Mended::kFold:
      return "yes, if folding is asked for";
    case Mended::kNo:
      break;
  }
  return "no";
}

}  // namespace

std::string explain_rule(const LintRule& rule) {
  const std::string see = *rule.reference == '\0' ? "" : fmt::format(" See {}.", rule.reference);
  return fmt::format("{} ({})\n  {}\n  {}{}\n  To do: {} Repair mends it: {}.\n", rule.id,
                     severities_of(rule), rule.what, rule.why, see, rule.fix, mended_text(rule.mended));
}

std::string lint_rules_page() {
  std::string page = fmt::format(
      "# What lint finds\n"
      "{} rules, each with its severity, what is wrong, what follows, what to do, and whether `twofour "
      "repair` mends it. `twofour lint {} "
      "all` prints this\npage, and a test compares them. [README.md](README.md) describes how rules work "
      "together.\n",
      lint_rules().size(), options::kExplain);
  for (const LintRule& rule : lint_rules()) {
    const std::string see = *rule.reference == '\0' ? "" : fmt::format(" See <{}>.", rule.reference);
    page += fmt::format("\n## {}\n{}\n- {}\n- {}{}\n- To do: {}\n- Repair mends it: {}\n", rule.id,
                        severities_of(rule), escaped(rule.what), escaped(rule.why), see, escaped(rule.fix),
                        mended_text(rule.mended));
  }
  return page;
}

}  // namespace twofour
