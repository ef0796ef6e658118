#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "formats/error.h"
#include "lib/jobs/convert/convert.h"
#include "lib/lint/lint.h"
#include "lib/prove/validate/validate.h"
#include "lib/repair/open_repaired.h"
#include "tests/support/faults/planted.h"
#include "tests/support/scratch.h"

// Several faults at once.

namespace drawn_repair_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;

/// The warnings and errors of a checkpoint, as "rule place".
std::set<std::string> faults_of(const fs::path& path) {
  Progress progress;
  std::set<std::string> faults;
  const std::function<void(const std::vector<LintFinding>&)> add = [&](auto& findings) {
    for (const LintFinding& f : findings) {
      add(f.consequences);
      if (f.severity != Severity::kNote)
        faults.insert(fmt::format("{} {}", lint_rules()[f.rule].id, f.where()));
    }
  };
  add(lint(path, {.jobs = 2}, progress).findings);
  return faults;
}

/// Plants faults together. Returns false if one takes away what another changes.
bool plant(const std::vector<const Planted*>& faults, const fs::path& original, const fs::path& broken) {
  Save save = base_checkpoint(faults[0]->base);
  write_planted(save, original);
  std::mt19937 random(7);
  try {
    for (const Planted* one : faults) {
      if (one->change) one->change(save, random);
    }
    write_planted(save, broken);
    for (const Planted* one : faults) {
      if (one->change_files) one->change_files(broken, random);
    }
  } catch (const std::exception&) {
    return false;
  }
  return true;
}

}  // namespace

TEST_CASE("fifty drawn pairs and triples of faults are mended, or refused by name") {
  const std::vector<Planted> all = planted_changes();
  std::map<Base, std::vector<const Planted*>> by_base;
  for (const Planted& one : all) {
    const bool is_artifact = one.base == Base::kV7 || one.base == Base::kG8;
    if (one.expect == Expect::kFault && !one.against && !is_artifact) by_base[one.base].push_back(&one);
  }
  std::vector<Base> bases;
  for (const auto& [base, faults] : by_base) {
    if (faults.size() >= 3) bases.push_back(base);
  }
  REQUIRE(bases.size() > 8);
  std::mt19937 random(4950);
  size_t drawn = 0, whole = 0, in_part = 0, refused = 0;
  while (drawn < 50) {
    std::vector<const Planted*> faults = by_base.at(bases[random() % bases.size()]);
    std::shuffle(faults.begin(), faults.end(), random);
    faults.resize(2 + drawn % 2);
    const Scratch scratch;
    const fs::path original = scratch / "original", broken = scratch / "broken", out = scratch / "out";
    if (!plant(faults, original, broken)) continue;
    const std::set<std::string> before = faults_of(broken);
    if (before.empty()) continue;  // one of them is the other's mend
    ++drawn;
    std::string what = base_name(faults[0]->base);
    for (const Planted* one : faults) what += fmt::format("; {}", one->what);
    CAPTURE(what);
    const auto by_name = [&](const std::string& text) {
      return text.find(broken.string()) != text.npos || text.find(original.string()) != text.npos ||
             text.find(".safetensors") != text.npos || text.find(".json") != text.npos;
    };
    try {
      const Repaired repaired = open_repaired(broken, original, {});
      if (repaired.mends.empty()) {
        ++refused;
        // Findings of weights have no mend that headers show; lint names them.
        for (const Finding& f : repaired.unmended) CHECK(!f.where.empty());
        continue;
      }
      const Recipe recipe(Edit{.kind = Edit::Kind::kRepair}, 100'000'000);
      Progress progress;
      convert(repaired.checkpoint, make_plan(repaired.checkpoint, recipe), out, {.jobs = 2}, progress);
      for (const Finding& f : validate(out, broken, {.donor = original}, progress).differences)
        CHECK_MESSAGE(false, f.id, ": ", f.where, ": ", f.message);
      const std::set<std::string> after = faults_of(out);
      std::string left;
      for (const std::string& fault : after) left += fault + "\n";
      CHECK_MESSAGE(after.size() <= before.size(), left);
      ++(after.empty() ? whole : in_part);
    } catch (const Error& e) {
      ++refused;
      CHECK_MESSAGE(by_name(e.what()), e.what());
    }
  }
  MESSAGE(fmt::format("{} drawn: {} mended whole, {} in part, {} refused", drawn, whole, in_part, refused));
  CHECK(3 * whole > drawn);
}

}  // namespace drawn_repair_test
