#include "tools/cli/lint_options.h"

#include <fmt/format.h>

#include "formats/error.h"
#include "lib/base/findings/problems.h"
#include "lib/base/findings/suggest.h"
#include "lib/lint/rules/rules.h"

namespace twofour {
namespace {

std::vector<std::string> rule_ids() {
  std::vector<std::string> ids;
  for (const LintRule& rule : lint_rules()) ids.push_back(rule.id);
  return ids;
}

[[noreturn]] void refuse_rule(const std::string& option, const std::string& typed) {
  throw ErrorLines({fmt::format("{}: expected the id of a rule, found '{}'{}", option, typed,
                                did_you_mean(typed, rule_ids())),
                    "See twofour lint --rules."});
}

}  // namespace

void check_lint_globs(const std::string& option, const std::vector<std::string>& globs) {
  for (const std::string& glob : globs)
    if (matching_rules(glob).empty()) refuse_rule(option, glob);
}

LintLevels parse_lint_levels(const std::vector<std::string>& texts) {
  LintLevels levels;
  for (const std::string& text : texts) {
    const size_t equals = text.find('=');
    const std::string id = text.substr(0, equals), level = equals == text.npos ? "" : text.substr(equals + 1);
    if (!find_lint_rule(id)) refuse_rule("--rule " + text, id);
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

}  // namespace twofour
