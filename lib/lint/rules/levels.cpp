#include "lib/lint/rules/levels.h"

#include <fmt/format.h>

#include "formats/error.h"
#include "lib/base/findings/options.h"
#include "lib/base/names/pattern.h"

namespace twofour {
namespace profiles {
namespace {

using enum Severity;

constexpr LintProfile kProfiles[] = {
    {"strict", "notes are warnings: whatever there is to say ends with exit code 1"},
    {"serve", "what stops an engine is an error, what only matters to others a note"},
    {"publish",
     "what users of a published checkpoint need is there: tokenizer, code, licence, model card, sizes"},
};

/// The severities of a rule in the profiles, if they differ from the table.
struct ProfileRow {
  const char* rule;
  Severity serve, publish;
};

constexpr ProfileRow kRows[] = {
    // Files and index. Engines that load by the index fail or go wrong, and hubs plan by sizes.
    {"dangling-link", kNote, kWarning},
    {"link-outside", kNote, kError},
    {"download-leftover", kNote, kWarning},
    {"leftover-file", kWarning, kError},
    {"no-index", kWarning, kError},
    {"index-incomplete", kError, kError},
    {"index-total-size", kNote, kError},
    // Modules. Other programs may serve formats that twofour does not read.
    {"unsupported-format", kNote, kNote},
    {"tied-head", kNote, kWarning},
    {"mtp-missing", kWarning, kError},
    // Configs. If an engine reads another format than the stored one, it does not start, or it computes
    // garbage.
    {"no-config", kError, kError},
    {"config-disagrees", kWarning, kError},
    {"engine-lookup", kError, kError},
    {"unquantized-not-ignored", kError, kError},
    {"unused-pattern", kNote, kWarning},
    {"unreadable-pattern", kError, kError},
    // Files beside the weights.
    {"missing-sidecar", kError, kError},
    {"no-tokenizer", kWarning, kError},
    {"missing-token", kError, kError},
    {"two-chat-templates", kWarning, kError},
};

/// The opt-in rules that a profile turns on.
struct OptInRow {
  const char* rule;
  const char* profile;
  Severity severity;
};

constexpr OptInRow kOptIns[] = {
    {"no-model-card", "publish", kWarning},
    {"no-license", "publish", kWarning},
    {"no-chat-template", "publish", kNote},
};

LintLevels levels(std::string_view profile) {
  LintLevels changed;
  if (profile == "strict") {
    for (const LintRule& rule : lint_rules())
      if (rule.severity == kNote && !rule.opt_in) changed[rule.id] = kWarning;
  } else {
    for (const ProfileRow& row : kRows) changed[row.rule] = profile == "serve" ? row.serve : row.publish;
  }
  for (const OptInRow& row : kOptIns)
    if (profile == row.profile) changed[row.rule] = row.severity;
  return changed;
}

}  // namespace
}  // namespace profiles

std::span<const LintProfile> lint_profiles() { return profiles::kProfiles; }

std::vector<size_t> matching_rules(std::string_view glob) {
  std::vector<size_t> rules;
  const bool is_regex = glob.starts_with("re:");
  const NamePattern pattern{is_regex ? std::string() : std::string(glob)};
  for (size_t i = 0; i < lint_rules().size() && !is_regex; ++i)
    if (pattern.matches(lint_rules()[i].id)) rules.push_back(i);
  return rules;
}

LintLevels levels_of(const LintChoice& choice) {
  LintLevels levels;
  if (!choice.profile.empty()) {
    bool known = false;
    for (const LintProfile& p : profiles::kProfiles) known = known || choice.profile == p.name;
    if (!known)
      throw Error(fmt::format("{}: expected strict, serve or publish, found '{}'", options::kProfile,
                              choice.profile));
    levels = profiles::levels(choice.profile);
  }
  for (const auto& [id, level] : choice.levels) levels[id] = level;
  if (!choice.select.empty()) {
    std::vector<bool> selected(lint_rules().size());
    for (const std::string& glob : choice.select)
      for (const size_t rule : matching_rules(glob)) selected[rule] = true;
    for (size_t i = 0; i < selected.size(); ++i) {
      const LintRule& rule = lint_rules()[i];
      const auto level = levels.find(rule.id);
      if (!selected[i]) {
        levels[rule.id] = std::nullopt;
      } else if (level == levels.end() ? rule.opt_in : !level->second) {
        levels[rule.id] = rule.severity;
      }
    }
  }
  for (const std::string& glob : choice.ignore)
    for (const size_t rule : matching_rules(glob)) levels[lint_rules()[rule].id] = std::nullopt;
  return levels;
}

}  // namespace twofour
