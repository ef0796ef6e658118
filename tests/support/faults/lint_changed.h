#pragma once
#include <random>
#include <set>
#include <string>

#include "lib/lint/lint.h"
#include "tests/support/faults/planted.h"
#include "tests/support/faults/spoil.h"
#include "tests/support/scratch.h"

namespace twofour {

/// The findings of lint in a sound checkpoint with a change, beside `against` if there is one.
inline LintReport lint_changed(Base base, const spoil::Change& change, std::optional<Base> against = {}) {
  const Scratch scratch;
  std::mt19937 random(1);
  Save save = base_checkpoint(base);
  if (change) change(save, random);
  write_planted(save, scratch / "changed");
  if (against) write_planted(base_checkpoint(*against), scratch / "sound");
  Progress progress;
  return lint(scratch / "changed", {.against = against ? scratch / "sound" : std::filesystem::path()},
              progress);
}

/// The rules of its findings above a note.
inline std::set<std::string> rules_of(const LintReport& report) {
  std::set<std::string> rules;
  for (const LintFinding& f : report.findings) {
    if (f.severity != Severity::kNote) rules.insert(lint_rules()[f.rule].id);
  }
  return rules;
}

inline std::set<std::string> rules_of_change(Base base, const spoil::Change& change,
                                             std::optional<Base> against = {}) {
  return rules_of(lint_changed(base, change, against));
}

}  // namespace twofour
