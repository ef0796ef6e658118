#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "formats/error.h"
#include "lib/base/io/file.h"
#include "lib/jobs/convert/convert.h"
#include "lib/lint/lint.h"
#include "lib/prove/validate/validate.h"
#include "lib/repair/open_repaired.h"
#include "tests/lib/repair/mended_cases.h"
#include "tests/support/faults/large_model.h"
#include "tests/support/faults/planted.h"
#include "tests/support/faults/spoil.h"
#include "tests/support/scratch.h"

// Each rule that repair mends has a fault that shows it. A rule that is marked as mended and has none fails.

namespace mended_rules_test {

using namespace twofour;
using namespace twofour::spoil;

namespace {

void note_rules(const std::vector<LintFinding>& findings, std::set<std::string>& rules) {
  for (const LintFinding& f : findings) {
    note_rules(f.consequences, rules);
    rules.insert(lint_rules()[f.rule].id);
  }
}

/// The report of a checkpoint, with a rule that may be off by default.
LintReport lint_of(const fs::path& path, const std::string& rule) {
  LintLevels levels;
  if (lint_rules()[*find_lint_rule(rule)].opt_in) levels[rule] = Severity::kWarning;
  Progress progress;
  return lint(path, {.jobs = 2, .levels = levels}, progress);
}

std::string text_of(const LintReport& report) {
  std::string text;
  for (const LintFinding& f : report.findings) {
    if (f.severity != Severity::kNote)
      text += fmt::format("{}: {}: {}\n", lint_rules()[f.rule].id, f.where(), f.message);
  }
  return text;
}

/// The names of tensors that differ, or that one of the checkpoints lacks.
std::string unlike_tensors(const fs::path& a, const fs::path& b) {
  const Checkpoint one = Checkpoint::open(a), two = Checkpoint::open(b);
  std::string unlike;
  const auto bytes = [](const Checkpoint& c, size_t i) {
    std::vector<uint8_t> all(c.tensors()[i].bytes());
    c.read(i, 0, all);
    return all;
  };
  for (size_t i = 0; i < one.tensors().size(); ++i) {
    const auto at = two.find(one.tensors()[i].name);
    if (!at || two.tensors()[*at].dtype != one.tensors()[i].dtype ||
        two.tensors()[*at].shape != one.tensors()[i].shape || bytes(one, i) != bytes(two, *at))
      unlike += one.tensors()[i].name + "\n";
  }
  for (const TensorInfo& t : two.tensors()) {
    if (!one.find(t.name)) unlike += "+" + t.name + "\n";
  }
  return unlike;
}

bool is_mended(std::string_view rule) { return lint_rules()[*find_lint_rule(rule)].mended != Mended::kNo; }

/// Repairs `broken` with the original as donor. Returns what is wrong; empty if lint finds the rule before
/// and nothing after the repair, validate proves it, and only the tensors `unlike` differ from the
/// original's.
std::string problem_of(const std::string& rule, const fs::path& broken, const fs::path& original,
                       const fs::path& out, const std::string& unlike = "") {
  std::set<std::string> before, after;
  const LintReport found = lint_of(broken, rule);
  note_rules(found.findings, before);
  if (!before.contains(rule)) return "lint does not find it: " + text_of(found);
  const RepairSettings settings{.folds = is_mended(rule) && rule == "unequal-global-scales"};
  try {
    const Repaired repaired = open_repaired(broken, original, settings);
    std::string text;
    for (const Finding& f : repaired.unmended) text += fmt::format("{} {}: {}\n", f.id, f.where, f.message);
    if (repaired.mends.empty()) return "nothing mended: " + text + text_of(found);
    const Recipe recipe(Edit{.kind = Edit::Kind::kRepair, .repair = settings}, 100'000'000);
    Progress progress;
    convert(repaired.checkpoint, make_plan(repaired.checkpoint, recipe), out, {.jobs = 2}, progress);
    const LintReport left = lint_of(out, rule);
    note_rules(left.findings, after);
    if (after.contains(rule) || !text_of(left).empty()) return "left: " + text_of(left) + text;
    for (const Finding& f : validate(out, broken, {.donor = original}, progress).differences)
      text += fmt::format("validate: {} {}: {}\n", f.id, f.where, f.message);
    const std::string differs = unlike_tensors(original, out);
    if (differs != unlike) text += "differs: " + differs;
    return text;
  } catch (const Error& e) {
    return fmt::format("refused: {}", e.what());
  }
}

/// Faults that the donor does not show the way out of, and what is said of them.
struct Beyond {
  const char *rule, *what, *said;
};
constexpr Beyond kBeyond[] = {
    {"duplicate-tensor", "twice", "nothing says which are the model's"},
    {"leftover-file", "another save", "it has other bytes under names of the indexed files"},
    {"gate-up-shape", "half of up", "model_type"},
    {"experts-extra", "a ninth", "expected 8 experts (config.json), found 9"},
    {"mtp-missing", "promised", "the donor does not have what is missing"},
    {"head-missing", "not tied", "the donor does not have what is missing"},
    {"bad-config", "config_groups of another type", "expected an object"},
    {"config-format", "an algorithm that nobody knows", "would lose what the present one says"},
    {"config-dtype", "FP8 for NVFP4", "as many findings"},
    {"quantized-head", "NVFP4", "the donor has no such module"},
    {"missing-sidecar", "code", "the donor has no such file"},
    {"unequal-global-scales", "gate and up", "expert-outlier"},
    {"bad-input-scale", "of the KV cache", "the layer has no other scale"},
    {"suspicious-scale", "a divisor", "is not within an octave"},
    {"suspicious-scale", "uninitialized", "expected a scale for values"},
    {"mxfp4-nan-scale", "0xFF", "the donor has no such module"},
};

/// A planted change by the rule that it shows.
struct ByName {
  const char* rule;
  Base base;
  const char* what;
};
constexpr ByName kPlanted[] = {
    {"missing-token", Base::kLlama, "a tokenizer of another model"},
    {"mtp-missing", Base::kQwenMixed, "counted and lost"},
    {"head-missing", Base::kMoe, "a head lost"},
    {"missing-input-scale", Base::kDeepSeek, "static, and none stored"},
    {"expert-outlier", Base::kMoe, "down_proj of an expert forty times too small"},
    {"layer-outlier", Base::kLlama, "the output of one layer's attention thirty times too large"},
    {"suspicious-scale", Base::kMixtral, "of one expert"},
    {"implausible-weights", Base::kDeepSeek, "of one FP8 module, as its name says"},
    {"odd-codes", Base::kLlama, "block scales of one module"},
    {"missing-kv-scale", Base::kLlamaKv, "of one layer lost"},
    {"identical-weights", Base::kMixtral, "two routers"},
    {"repeated-rows", Base::kMoe, "one code everywhere"},
    {"zero-regions", Base::kMoe, "the second half of the rows"},
    {"scale-order", Base::kLlama, "transposed in one linear"},
    {"missing-shard", Base::kTiny, "one shard"},
    {"not-downloaded", Base::kTiny, "a Git LFS pointer for the tokenizer"},
    {"token-ids", Base::kLlama, "two tokens of one number"},
    {"bad-tokenizer", Base::kLlama, "merges of other words"},
    {"tokenizer-steps", Base::kLlama, "texts cut"},
    {"token-flags", Base::kLlama, "a begin of turns that one file calls a text"},
    {"bad-chat-template", Base::kLlama, "a loop that does not end"},
    {"template-gap", Base::kLlama, "tokens of another model"},
};

std::set<std::string>& shown() {
  static std::set<std::string> rules;
  return rules;
}

void check(const std::string& rule, const char* what, const std::string& problem) {
  CHECK_MESSAGE(problem.empty(), rule, ": ", what, ": ", problem);
  if (problem.empty()) shown().insert(rule);
}

void show(const MendedCase& one) {
  const Scratch scratch;
  std::mt19937 random(7);
  Save save = base_checkpoint(one.base);
  if (one.of_both) one.of_both(save, random);
  write_planted(save, scratch / "original");
  if (one.change) one.change(save, random);
  write_planted(save, scratch / "broken");
  if (one.change_files) one.change_files(scratch / "broken");
  check(one.rule, one.what,
        problem_of(one.rule, scratch / "broken", scratch / "original", scratch / "out", one.unlike));
}

void show_faults_of_lint() {
  std::vector<Fault> all = file_faults();
  for (const auto& more : {content_faults(), model_faults()}) all.insert(all.end(), more.begin(), more.end());
  size_t beyond = 0;
  for (const Fault& f : all) {
    if (!is_mended(f.rule)) continue;
    const Scratch scratch;
    Save save = sound_checkpoint();
    write_save(save, scratch / "original");
    std::mt19937 random(5);
    if (f.spoil) f.spoil(save, random);
    write_save(save, scratch / "broken");
    if (f.spoil_files) f.spoil_files(scratch / "broken", random);
    const std::string problem = problem_of(f.rule, scratch / "broken", scratch / "original", scratch / "out");
    const auto known = std::ranges::find_if(kBeyond, [&](const Beyond& b) {
      return std::string_view(b.rule) == f.rule && std::string_view(b.what) == f.what;
    });
    if (known == std::end(kBeyond)) {
      check(f.rule, f.what, problem);
      continue;
    }
    ++beyond;
    CHECK_MESSAGE(problem.find(known->said) != problem.npos, f.rule, ": ", f.what, ": ", problem);
  }
  CHECK(beyond == std::size(kBeyond));
}

void show_planted() {
  const std::vector<Planted> all = planted_changes();
  for (const ByName& name : kPlanted) {
    const auto one = std::ranges::find_if(
        all, [&](const Planted& p) { return p.base == name.base && std::string_view(p.what) == name.what; });
    REQUIRE_MESSAGE(one != all.end(), name.what);
    const auto files = [&](const fs::path& d) {
      std::mt19937 random(7);
      if (one->change_files) one->change_files(d, random);
    };
    // A donor's scale is the original's; other numbers follow from neighbours.
    show({name.rule, name.base, name.what, one->change, files});
  }
}

/// Faults that show in matrices of real size alone.
void show_large() {
  const std::string up = "model.layers.1.mlp.up_proj.weight";
  using Span = std::span<uint8_t>;
  const LargeModel::Edit noise = [](Span b, size_t, std::mt19937& random) {
    for (size_t i = 128 << 10; i < 192 << 10; ++i) b[i] = static_cast<uint8_t>(random());
  };
  const LargeModel::Edit larger = [](Span b, size_t, std::mt19937&) {
    for (size_t i = b.size() / 2 + 1; i < b.size(); i += 2) b[i] = static_cast<uint8_t>(b[i] + 2);
  };
  const LargeModel::Edit cut = [](Span b, size_t, std::mt19937& random) {
    for (uint8_t& byte : b) byte = random() % 100 < 8 ? static_cast<uint8_t>((byte & 0x80) | 0x7E) : byte;
  };
  const std::tuple<const char*, const char*, LargeModel::Edit> all[] = {{"odd-region", "nvfp4", noise},

                                                                        {"uneven-parts", "bf16", larger},
                                                                        {"cut-off-weights", "fp8", cut}};
  for (const auto& [rule, format, edit] : all) {
    const Scratch scratch;
    const LargeModel& model = LargeModel::get(format);
    model.write_changed(scratch / "original", {});
    model.write_changed(scratch / "broken", {{up, edit}});
    check(rule, format, problem_of(rule, scratch / "broken", scratch / "original", scratch / "out"));
  }
}

}  // namespace

TEST_CASE("each rule that is said to be mended has a fault whose repair is the original") {
  show_faults_of_lint();
  for (const MendedCase& one : mended_cases()) {
    CAPTURE(std::string(one.what));
    CHECK_NOTHROW(show(one));
  }
  show_planted();
  show_large();
  std::set<std::string> without;
  for (const LintRule& rule : lint_rules()) {
    if (rule.mended != Mended::kNo && !shown().contains(rule.id)) without.insert(rule.id);
  }
  // repair_test.cpp and planted_repair_test.cpp have no fault of these alone either.
  CHECK(without ==
        std::set<std::string>{"experts-extra", "gate-up-shape", "no-chat-template", "outlier-weight"});
}

}  // namespace mended_rules_test
