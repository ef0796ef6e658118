#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <random>
#include <set>

#include "formats/error.h"
#include "lib/jobs/convert/convert.h"
#include "lib/lint/lint.h"
#include "lib/prove/validate/validate.h"
#include "lib/repair/open_repaired.h"
#include "tests/support/faults/planted.h"
#include "tests/support/scratch.h"

namespace planted_repair_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;

void note_rules(const std::vector<LintFinding>& findings, std::set<std::string>& rules) {
  for (const LintFinding& f : findings) {
    note_rules(f.consequences, rules);
    rules.insert(lint_rules()[f.rule].id);
  }
}

size_t faults_of(const fs::path& path, std::string& text, std::set<std::string>& rules) {
  Progress progress;
  const LintReport report = lint(path, {.jobs = 2}, progress);
  note_rules(report.findings, rules);
  size_t count = 0;
  for (const LintFinding& f : report.findings) {
    if (f.severity == Severity::kNote) continue;
    text += fmt::format("  {}: {}: {}\n", lint_rules()[f.rule].id, f.where(), f.message);
    count += 1 + f.consequences.size();
  }
  return count;
}

}  // namespace

/// TWOFOUR_PLANTED=1 takes all changes, prints what was mended, and demands a mend of every rule that is
/// marked as mended.
TEST_CASE("planted faults are mended or refused by name, and no repair adds a fault") {
  std::vector<Planted> all = planted_changes();
  std::mt19937 random(49);
  std::shuffle(all.begin(), all.end(), random);
  const bool prints = std::getenv("TWOFOUR_PLANTED") != nullptr;
  std::set<std::string> gone;  // rules that found something before a repair and nothing after it
  size_t tried = 0, mended = 0, whole = 0, refused = 0;
  for (const Planted& one : all) {
    if (one.base == Base::kV7 || one.base == Base::kG8) continue;
    if (!prints && tried == 60) break;
    ++tried;
    CAPTURE(std::string(base_name(one.base)));
    CAPTURE(std::string(one.what));
    const Scratch scratch;
    Save save = base_checkpoint(one.base);
    write_planted(save, scratch / "original");
    std::mt19937 seed(7);
    if (one.change) one.change(save, seed);
    write_planted(save, scratch / "broken");
    if (one.change_files) one.change_files(scratch / "broken", seed);
    std::string before_text, after_text;
    std::set<std::string> rules_before, rules_after;
    const size_t before = faults_of(scratch / "broken", before_text, rules_before);
    try {
      const Repaired repaired = open_repaired(scratch / "broken", scratch / "original", {});
      if (repaired.mends.empty()) {
        for (const Finding& f : repaired.unmended) before_text += "  " + f.where + ": " + f.message + "\n";
        if (prints && before > 0)
          MESSAGE(fmt::format("left: {} {}\n{}", base_name(one.base), one.what, before_text));
        continue;
      }
      ++mended;
      if (one.expect == Expect::kHarmless) {
        for (const MendRecord& m : repaired.mends)
          MESSAGE(fmt::format("harmless: {} {}: {}", base_name(one.base), one.what, m.mend));
      }
      const Recipe recipe(Edit{.kind = Edit::Kind::kRepair}, 100'000'000);
      Progress progress;
      convert(repaired.checkpoint, make_plan(repaired.checkpoint, recipe), scratch / "out", {.jobs = 2},
              progress);
      const ValidateOptions options{.donor = scratch / "original"};
      for (const Finding& f : validate(scratch / "out", scratch / "broken", options, progress).differences)
        CHECK_MESSAGE(false, f.id, ": ", f.where, ": ", f.message);
      const size_t after = faults_of(scratch / "out", after_text, rules_after);
      for (const std::string& rule : rules_before) {
        const bool is_gone = !rules_after.contains(rule);
        if (is_gone && lint_rules()[*find_lint_rule(rule)].mended == Mended::kNo && prints)
          MESSAGE(fmt::format("not marked: {} by {} {}", rule, base_name(one.base), one.what));
        if (is_gone) gone.insert(rule);
      }
      whole += after == 0;
      if (prints && after > 0) {
        std::string mends;
        for (const MendRecord& m : repaired.mends) mends += m.mend + " ";
        MESSAGE(fmt::format("in part: {} {} by {}\n{}after\n{}", base_name(one.base), one.what, mends,
                            before_text, after_text));
      }
      CHECK_MESSAGE(after <= before, before_text, "after\n", after_text);
    } catch (const Error& e) {
      ++refused;
      CHECK_MESSAGE(before > 0, e.what());
      if (prints) MESSAGE(fmt::format("refused: {} {}: {}", base_name(one.base), one.what, e.what()));
    }
  }
  MESSAGE(fmt::format("{} tried, {} mended, {} of them whole, {} refused", tried, mended, whole, refused));
  CHECK(3 * whole > tried);
  std::string others;
  for (const LintRule& rule : lint_rules()) {
    if (rule.mended != Mended::kNo && !gone.contains(rule.id)) others += fmt::format(" {}", rule.id);
  }
  if (prints) MESSAGE(fmt::format("marked as mended, and not among these changes:{}", others));
}

}  // namespace planted_repair_test
