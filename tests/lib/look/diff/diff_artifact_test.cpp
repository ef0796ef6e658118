#include <doctest/doctest.h>

#include "lib/look/diff/diff.h"
#include "lib/recipe/artifact/open_unpacked.h"
#include "tests/support/conversion.h"
#include "tests/support/one_rule.h"
#include "tests/support/scratch.h"

namespace diff_artifact_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;

fs::path golden(const std::string& name) { return fs::path(TWOFOUR_GOLDEN_DIR) / name / "src"; }

DiffResult diff_of(const fs::path& a, const fs::path& b) {
  Progress progress;
  return diff(open_source(a), open_source(b), {}, progress);
}

}  // namespace

TEST_CASE("v7 equals the pruned source, byte for byte, and differs from the source by what pruning lost") {
  for (const char* name : {"modelopt-qwen3", "compressed-tensors-qwen3"}) {
    CAPTURE(name);
    const Scratch scratch;
    OneRule prune;
    prune.to = "prune";
    prune.pattern = "2:4";
    convert(golden(name), scratch / "pruned", prune);
    for (const char* layout : {"v7", "v7-packed"}) {
      OneRule recipe;
      recipe.to = layout;
      convert(golden(name), scratch / layout, recipe);
      const DiffResult equal = diff_of(scratch / "pruned", scratch / layout);
      CHECK(equal.count(DiffClass::kEqual) == equal.entries.size());
      CHECK(equal.same_bytes == equal.entries.size());
      const DiffResult lossy = diff_of(golden(name), scratch / layout);
      CHECK(lossy.count(DiffClass::kDifferent) > 0);
      CHECK(lossy.count(DiffClass::kDifferent) + lossy.count(DiffClass::kEqual) == lossy.entries.size());
      for (const DiffEntry& e : lossy.entries) {
        if (e.cls != DiffClass::kDifferent) continue;
        CHECK(e.name.find("experts") != e.name.npos);
        CHECK(e.error.first.found == 0);
        CHECK(e.error.snr_db() > 5);
        CHECK(e.error.snr_db() < 20);
      }
    }
  }
}

TEST_CASE("a conversion to the other dialect and back differs by a reciprocal's last bit at most") {
  for (const char* name : {"modelopt-qwen3", "modelopt-mixtral-uneven"}) {
    const Scratch scratch;
    OneRule recipe;
    recipe.to = "nvfp4";
    convert(golden(name), scratch / "there", recipe);
    convert(scratch / "there", scratch / "back", recipe);
    for (const char* other : {"there", "back"}) {
      const DiffResult r = diff_of(golden(name), scratch / other);
      for (const DiffEntry& e : r.entries) {
        CAPTURE(e.name);
        CHECK((e.cls == DiffClass::kEqual || e.cls == DiffClass::kReciprocal));
      }
      CHECK((r.renamed > 0) == (other == std::string("there")));
    }
  }
}

TEST_CASE("g8 with folded scales differs where scales were folded, and there alone") {
  const Scratch scratch;
  OneRule recipe;
  recipe.to = "g8";
  convert(golden("modelopt-mixtral-uneven"), scratch / "g8", recipe);
  const DiffResult r = diff_of(golden("modelopt-mixtral-uneven"), scratch / "g8");
  size_t folded = 0;
  for (const DiffEntry& e : r.entries) {
    CAPTURE(e.name);
    const bool may_differ = e.name.ends_with(".w1") || e.name.ends_with(".w3");
    CHECK((e.cls == DiffClass::kEqual || (may_differ && e.cls == DiffClass::kDifferent)));
    folded += e.cls == DiffClass::kDifferent;
  }
  CHECK(folded > 0);
}

}  // namespace diff_artifact_test
