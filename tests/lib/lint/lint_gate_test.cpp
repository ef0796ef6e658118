#include <doctest/doctest.h>
#include <fmt/format.h>

#include <set>

#include "formats/error.h"
#include "lib/base/io/file.h"
#include "lib/lint/lint.h"
#include "lib/lint/rules/baseline.h"
#include "lib/lint/rules/explain.h"
#include "lib/lint/rules/levels.h"
#include "tests/support/faults/faults.h"
#include "tests/support/message.h"
#include "tests/support/scratch.h"

namespace lint_gate_test {

using namespace twofour;
namespace fs = std::filesystem;

namespace {

const fs::path kUneven = fs::path(TWOFOUR_GOLDEN_DIR) / "modelopt-mixtral-uneven" / "src";

LintReport lint_with(const fs::path& path, LintOptions options) {
  Progress progress;
  return lint(path, options, progress);
}

std::set<std::string> fired(const LintReport& report) {
  std::set<std::string> ids;
  for (const LintFinding& f : report.findings) ids.insert(lint_rules()[f.rule].id);
  return ids;
}

std::optional<Severity> level_in(const LintChoice& choice, const std::string& rule) {
  const LintLevels levels = levels_of(choice);
  const auto at = levels.find(rule);
  const LintRule& own = lint_rules()[*find_lint_rule(rule)];
  return at != levels.end() ? at->second : own.opt_in ? std::nullopt : std::optional(own.severity);
}

}  // namespace

TEST_CASE("RULES.md is what lint says of its rules") {
  const fs::path page = fs::path(TWOFOUR_SOURCE_DIR) / "lib/lint/RULES.md";
  CHECK_MESSAGE(read_text(page) == lint_rules_page(), "run: twofour lint --explain all >lib/lint/RULES.md");
}

TEST_CASE("a rule is explained in three lines") {
  const std::string text = explain_rule(lint_rules()[*find_lint_rule("index-total-size")]);
  CHECK(text ==
        "index-total-size (warning; serve: note, publish: error)\n"
        "  metadata.total_size is not the sum of the tensors' bytes.\n"
        "  Memory and downloads are planned by it. See https://github.com/exo-explore/exo/pull/1956.\n"
        "  To do: Set it to that sum; twofour repair does it. Repair mends it: yes.\n");
  for (const LintRule& rule : lint_rules()) {
    CAPTURE(rule.id);
    const std::string lines = explain_rule(rule);
    CHECK(std::count(lines.begin(), lines.end(), '\n') == 4);
  }
}

TEST_CASE("of levels the later decides: profile, rule, select, ignore") {
  const std::string rule = "index-total-size";
  CHECK(level_in({}, rule) == Severity::kWarning);
  CHECK(level_in({.profile = "serve"}, rule) == Severity::kNote);
  CHECK(level_in({.profile = "publish"}, rule) == Severity::kError);
  CHECK(level_in({.profile = "publish", .levels = {{rule, Severity::kNote}}}, rule) == Severity::kNote);
  CHECK(level_in({.levels = {{rule, Severity::kNote}}, .select = {"index-*"}}, rule) == Severity::kNote);
  CHECK(level_in({.levels = {{rule, std::nullopt}}, .select = {"index-*"}}, rule) == Severity::kWarning);
  CHECK(level_in({.select = {"index-*"}, .ignore = {"*-size"}}, rule) == std::nullopt);
  CHECK(level_in({.select = {"bad-*", "no-config"}}, rule) == std::nullopt);
  CHECK(level_in({.select = {"bad-*", "no-config"}}, "no-config") == Severity::kWarning);
  CHECK(level_in({.ignore = {"*"}}, "bad-header") == std::nullopt);
  CHECK_THROWS_WITH_AS(levels_of({.profile = "loud"}),
                       "--profile: expected strict, serve or publish, found 'loud'", Error);
}

TEST_CASE("strict leaves no notes, and opt-in rules are on where they are asked for") {
  for (const LintRule& rule : lint_rules()) {
    CAPTURE(rule.id);
    CHECK(level_in({.profile = "strict"}, rule.id) != Severity::kNote);
    CHECK((level_in({}, rule.id) == std::nullopt) == rule.opt_in);
  }
  CHECK(level_in({.profile = "publish"}, "no-license") == Severity::kWarning);
  CHECK(level_in({.profile = "serve"}, "no-license") == std::nullopt);
  CHECK(level_in({.select = {"no-license"}}, "no-license") == Severity::kWarning);
}

TEST_CASE("every rule that profiles name is one") {
  for (const LintProfile& profile : lint_profiles())
    for (const auto& [id, level] : levels_of({.profile = profile.name}))
      CHECK(find_lint_rule(id).has_value());
}

TEST_CASE("globs match ids of rules and nothing else") {
  CHECK(matching_rules("index-*").size() == 4);
  CHECK(matching_rules("bad-header").size() == 1);
  CHECK(matching_rules("*").size() == lint_rules().size());
  for (const char* none : {"", "index", "re:.*", "Index-*", "bad header"})
    CHECK(matching_rules(none).empty());
}

TEST_CASE("what a published checkpoint lacks is found on request") {
  const Scratch scratch;
  const fs::path path = scratch / "checkpoint";
  Save save = sound_checkpoint();
  save.files.erase("README.md");
  save.files["tokenizer_config.json"] = "{}";
  write_save(save, path);
  LintOptions options{.headers_only = true, .levels = levels_of({.profile = "publish"})};
  CHECK(fired(lint_with(path, options)) ==
        std::set<std::string>{"no-chat-template", "no-license", "no-model-card"});
  CHECK(lint_with(path, {.headers_only = true}).findings.empty());
  write_text(path / "README.md", "---\nbase_model: a/b\nlicense: mit\n---\n# A model\n");
  write_text(path / "chat_template.jinja", "{{ messages }}");
  CHECK(lint_with(path, options).findings.empty());
  fs::remove(path / "README.md");
  write_text(path / "README.md", "The license: of the source.\n");
  CHECK(fired(lint_with(path, options)) == std::set<std::string>{"no-license"});
  write_text(path / "LICENSE.txt", "MIT");
  CHECK(lint_with(path, options).findings.empty());
}

TEST_CASE("findings of a baseline do not count, new ones do") {
  const Scratch scratch;
  const fs::path file = scratch / "known.json", path = scratch / "checkpoint";
  fs::copy(kUneven, path);
  const LintReport first = lint_with(path, {});
  REQUIRE(first.findings.size() == 2);
  write_baseline(file, first);
  const LintBaseline baseline = read_baseline(file);
  CHECK(baseline.entries.size() == 2);
  const LintReport second = lint_with(path, {.baseline = &baseline});
  CHECK(second.findings.empty());
  CHECK(second.known.size() == 2);
  CHECK(!second.failed());

  fs::remove(path / "config.json");
  const LintReport third = lint_with(path, {.baseline = &baseline});
  CHECK(third.failed());
  CHECK(third.known.size() == 2);
  CHECK(fired(third).contains("no-config"));
}

TEST_CASE("a baseline is known by rule, place and message, whatever the numbers in it") {
  LintBaseline::Entry e{"bad-header", "a.safetensors", "expected 8 bytes, found 4,096 of 0.5 and -1.5e-07"};
  const auto identity = [&](const char* message) { return finding_identity(e.rule, e.where, message); };
  CHECK(identity("expected 8 bytes") == identity("expected 16 bytes"));
  CHECK(identity("found 4,096 of 0.5") == identity("found 1 of 1.5e-07"));
  CHECK(identity("expected 00112233445566778899aabbccddeeff as twofour.json says") ==
        identity("expected ffeeddccbbaa99887766554433221100 as twofour.json says"));
  CHECK(identity("expected 8 bytes") != identity("expected 8 tensors"));
  CHECK(identity("1, 2") == identity("3, 4"));
  CHECK(identity("1, 2") != identity("3"));
  CHECK(finding_identity("a", "x.1", "m") != finding_identity("a", "x.2", "m"));
  CHECK(finding_identity("a", "x", "m") != finding_identity("b", "x", "m"));
}

TEST_CASE(
    "what the baseline knows and nobody finds is a note, unless its rule is off or not all was looked at") {
  const Scratch scratch;
  const fs::path file = scratch / "known.json";
  write_baseline(file, lint_with(kUneven, {}));
  const LintBaseline baseline = read_baseline(file);
  const fs::path sound = fs::path(TWOFOUR_GOLDEN_DIR) / "modelopt-qwen3" / "src";
  const LintReport report = lint_with(sound, {.baseline = &baseline});
  CHECK(fired(report) == std::set<std::string>{"baseline-stale"});
  CHECK(report.findings.size() == 2);
  CHECK(!report.failed());
  CHECK(contains(report.findings[0].message, "expected unequal-global-scales (in "));
  CHECK(lint_with(sound, {.headers_only = true, .baseline = &baseline}).findings.empty());
  CHECK(lint_with(sound, {.levels = {{"unequal-global-scales", std::nullopt}}, .baseline = &baseline})
            .findings.empty());
}

TEST_CASE("consequences are in a baseline, and stay known without their cause") {
  const Scratch scratch;
  const fs::path path = scratch / "checkpoint";
  write_save(sound_checkpoint(), path);
  for (const auto& entry : fs::directory_iterator(path)) {
    if (entry.path().filename().string().starts_with("model-00001-of")) fs::remove(entry.path());
  }
  const LintReport first = lint_with(path, {.headers_only = true});
  REQUIRE(first.findings.size() == 1);
  REQUIRE(first.consequences() > 0);
  write_baseline(scratch / "known.json", first);
  const LintBaseline baseline = read_baseline(scratch / "known.json");
  CHECK(baseline.entries.size() == 1 + first.consequences());
  CHECK(lint_with(path, {.headers_only = true, .baseline = &baseline}).findings.empty());
  CHECK(lint_with(path,
                  {.headers_only = true, .levels = {{"missing-shard", std::nullopt}}, .baseline = &baseline})
            .findings.empty());
}

TEST_CASE("what is no baseline is refused, and no other file is replaced by one") {
  const Scratch scratch;
  const fs::path file = scratch / "known.json";
  for (const char* text :
       {"", "[]", "{}", "{\"findings\": {}}", "{\"findings\": [1]}", "{\"findings\": [{}]}",
        "{\"findings\": [{\"rule\": 1, \"where\": \"\", \"message\": \"\"}]}",
        "{\"findings\": [{\"rule\": \"a\", \"where\": \"\", \"message\": \"\", \"consequences\": 5}]}"}) {
    CAPTURE(text);
    fs::remove(file);
    write_text(file, text);
    CHECK_THROWS_AS(read_baseline(file), Error);
    CHECK_THROWS_AS(write_baseline(file, {}), Error);
  }
  CHECK_THROWS_AS(read_baseline(scratch / "nothing"), Error);
  fs::remove(file);
  write_baseline(file, {});
  CHECK(read_baseline(file).entries.empty());
  write_baseline(file, lint_with(kUneven, {}));
  CHECK(read_baseline(file).entries.size() == 2);
}

}  // namespace lint_gate_test
