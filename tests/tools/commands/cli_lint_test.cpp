#include <doctest/doctest.h>

#include "formats/json.h"
#include "tests/support/faults/faults.h"
#include "tests/support/faults/injected.h"
#include "tests/support/outcome.h"
#include "tests/support/scratch.h"

namespace cli_lint_test {

using namespace twofour;

namespace {

const std::string kUneven = std::string(TWOFOUR_GOLDEN_DIR) + "/modelopt-mixtral-uneven/src";
const std::string kEven = std::string(TWOFOUR_GOLDEN_DIR) + "/modelopt-qwen3/src";

}  // namespace

TEST_CASE("lint ends with 0, 1 or 2") {
  CHECK(run_program({"lint", kEven}).code == 0);
  CHECK(run_program({"lint", kEven, "--headers-only", "--jobs", "1"}).code == 0);
  CHECK(run_program({"lint", kUneven}).code == 1);
  CHECK(run_program({"lint", kUneven, "--headers-only"}).code == 0);
  CHECK(run_program({"lint", kUneven, "--rule", "unequal-global-scales=warning"}).code == 1);
  CHECK(run_program({"lint", kUneven, "--rule", "unequal-global-scales=note"}).code == 0);
  CHECK(run_program({"lint", kUneven, "--rule=unequal-global-scales=off"}).code == 0);
  CHECK(run_program({"lint", kUneven + "/nothing"}).code == 2);
  CHECK(run_program({"lint"}).code == 2);
  CHECK(run_program({"lint", kEven, "--json", "--sarif"}).code == 2);
  const Outcome typo = run_program({"lint", kEven, "--rule", "unequal-global-scale=off"});
  CHECK(typo.code == 2);
  CHECK(typo.err.find("did you mean unequal-global-scales?") != typo.err.npos);
  CHECK(run_program({"lint", kEven, "--rule", "padding=loud"}).code == 2);
}

TEST_CASE("a file that cannot be read ends lint with 2 and is no finding") {
  if (!can_inject()) return;
  const Scratch scratch;
  Save save = sound_checkpoint();
  save.edit("tokenizer_config.json", [](Json& j) { j["chat_template"] = "x"; });
  save.files["chat_template.jinja"] = "x";
  write_save(save, scratch / "checkpoint");
  const std::string artifact = (scratch / "artifact").string();
  REQUIRE(run_program({"convert", (scratch / "checkpoint").string(), artifact, "--to", "v7", "-q"}).code ==
          0);
  CHECK(run_program({"lint", artifact}).code == 0);
  for (const std::string file : {"config.json", "tokenizer_config.json", "chat_template.jinja",
                                 "tokenizer.json", "model.safetensors.index.json", "twofour.json"}) {
    CAPTURE(file);
    check_one_line(run_program({"lint", artifact}, injected("pread EIO 1", file)),
                   "/" + file + ": cannot read: Input/output error");
  }
}

TEST_CASE("lint says where, what was expected, what was found and what to do") {
  const Outcome text = run_program({"lint", kUneven});
  CHECK(text.out.starts_with("error [unequal-global-scales] "));
  CHECK(text.out.find("2 of 2 groups, the largest ratio 3.323") != text.out.npos);
  CHECK(text.out.find("experts.1: expected equal scales, found w1 0.00013465698, w3 0.00044744197") !=
        text.out.npos);
  CHECK(text.out.find("to do: ") != text.out.npos);
  CHECK(text.out.find("2 errors, 0 warnings, 0 notes; 34 tensors in 2 files, ") != text.out.npos);
  CHECK(run_program({"lint", kUneven, "-q"}).out.empty());

  const Json json = parse_json("stdout", run_program({"lint", kUneven, "--json"}).out);
  CHECK(json["sound"] == false);
  CHECK(json["errors"] == 2);
  CHECK(json["findings"].size() == 2);
  CHECK(json["findings"][1]["rule"] == "unequal-global-scales");
  CHECK(json["rules"][0]["summary"] == "2 of 2 groups, the largest ratio 3.323");
  const Json sarif = parse_json("stdout", run_program({"lint", kUneven, "--sarif"}).out);
  CHECK(sarif["runs"][0]["results"].size() == 2);
}

TEST_CASE("lint shows the first few places, with --verbose all, and notes only then") {
  const Scratch scratch;
  Save save = sound_checkpoint();
  for (int e = 0; e < 8; ++e)
    save.erase("model.layers.0.mlp.experts." + std::to_string(e) + ".up_proj.weight_scale_2");
  save.files.erase("tokenizer.json");
  save.files.erase("tokenizer_config.json");
  write_save(save, scratch / "checkpoint");
  const std::string path = (scratch / "checkpoint").string();
  const Outcome few = run_program({"lint", path}), all = run_program({"lint", path, "--verbose"});
  CHECK(few.out.find("... and 3 more") != few.out.npos);
  CHECK(few.out.find("experts.7") == few.out.npos);
  CHECK(few.out.find("[no-tokenizer]") == few.out.npos);
  CHECK(few.out.find("8 errors, 0 warnings, 1 note (--verbose shows notes)") != few.out.npos);
  CHECK(all.out.find("experts.7.up_proj: expected ") != all.out.npos);
  CHECK(all.out.find("[no-tokenizer]") != all.out.npos);
}

TEST_CASE("lint lists its rules") {
  const Outcome text = run_program({"lint", "--rules"});
  CHECK(text.code == 0);
  CHECK(text.out.find("unequal-global-scales") != text.out.npos);
  const Json json = parse_json("stdout", run_program({"lint", "--rules", "--json"}).out);
  CHECK(json["rules"].size() > 40);
  CHECK(json["rules"][0]["severity"] == "error");
}

}  // namespace cli_lint_test
