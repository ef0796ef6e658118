#include <doctest/doctest.h>

#include "formats/json.h"
#include "tests/support/checkpoint_builder.h"
#include "tests/support/faults/faults.h"
#include "tests/support/faults/injected.h"
#include "tests/support/program.h"
#include "tests/support/scratch.h"

namespace cli_diff_test {

using namespace twofour;

namespace {

const std::string kSource = std::string(TWOFOUR_GOLDEN_DIR) + "/modelopt-qwen3/src";
const std::string kOther = std::string(TWOFOUR_GOLDEN_DIR) + "/compressed-tensors-qwen3/src";
const std::string kBlock = "model.layers.0.mlp.experts";

/// Two checkpoints of one model, one code of which is 3 in A and -4 in B.
struct Flipped {
  Scratch scratch;
  std::string a = (scratch / "a").string(), b = (scratch / "b").string();
  Flipped() {
    Tensors tensors = experts_stored_as("modelopt", kBlock, 2, 32, 48);
    for (TensorData& t : tensors) {
      if (t.name == kBlock + ".1.down_proj.weight_scale") t.bytes[2 * 2 + 1] = 0x38;
      if (t.name == kBlock + ".1.down_proj.weight") t.bytes[2 * 16 + 8] = 0x05;
    }
    write_checkpoint(scratch / "a", {tensors});
    for (TensorData& t : tensors) {
      if (t.name == kBlock + ".1.down_proj.weight") t.bytes[2 * 16 + 8] = 0x0E;
    }
    write_checkpoint(scratch / "b", {tensors}, R"({"transformers_version": "5.17.0"})");
  }
};

}  // namespace

TEST_CASE("diff ends with 0, 1 or 2") {
  const Flipped f;
  CHECK(run_program({"diff", kSource, kSource}).code == 0);
  CHECK(run_program({"diff", f.a, f.b}).code == 1);
  CHECK(run_program({"diff", f.a, f.b, "--fail-on", "none"}).code == 0);
  CHECK(run_program({"diff", f.a, f.b, "--fail-on", "added,removed"}).code == 0);
  CHECK(run_program({"diff", f.a, f.b, "--fail-on", "cosine<0.5"}).code == 0);
  CHECK(run_program({"diff", f.a, f.b, "--fail-on=max-abs>1"}).code == 1);
  CHECK(run_program({"diff", f.a, f.b, "--tolerance", "3"}).code == 0);
  CHECK(run_program({"diff", f.a, f.b, "--exclude", "*.1.down_proj"}).code == 0);
  CHECK(run_program({"diff", f.a, f.b, "--include", "*.experts.0.*", "-j", "1"}).code == 0);
  CHECK(run_program({"diff", f.a, f.b, "--include", "*.2.*"}).code == 2);
  CHECK(run_program({"diff", f.a, f.b, "--fail-on", "sometimes"}).code == 2);
  CHECK(run_program({"diff", f.a, f.b, "--tolerance", "-1"}).code == 2);
  CHECK(run_program({"diff", f.a}).code == 2);
  CHECK(run_program({"diff", f.a, f.b + "/nothing"}).code == 2);
  const Outcome typo = run_program({"dif", f.a, f.b});
  CHECK(typo.err.find("did you mean diff?") != typo.err.npos);
}

TEST_CASE("a read that fails ends diff and validate with 2, it is no difference") {
  if (!can_inject()) return;
  const Flipped f;
  const std::string out = (f.scratch / "out").string();
  REQUIRE(run_program({"convert", f.a, out, "--to", "nvfp4", "-q"}).code == 0);
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"diff", f.a, out}, {"validate", out, "--source", f.a, "-j", "1"}}) {
    REQUIRE(run_program(words).code == 0);
    int failed = 0;
    for (int n = 1;; n += 3) {
      CAPTURE(n);
      const Outcome o = run_program(words, injected("pread EIO " + std::to_string(n)));
      if (o.code == 0) break;  // there are fewer reads
      ++failed;
      REQUIRE(o.code == 2);
      CHECK_MESSAGE(o.err.find(": cannot read: Input/output error") != o.err.npos, o.err);
    }
    CHECK(failed > 10);
  }
}

TEST_CASE("diff tells values that differ in their last bit apart") {
  const Scratch scratch;
  for (const uint8_t last : {uint8_t{0}, uint8_t{1}}) {
    write_safetensors(scratch / (last ? "b.safetensors" : "a.safetensors"),
                      {{"x", DType::kF64, {1}, {last, 0, 0, 0, 0, 0, 0xF0, 0x3F}}});
  }
  const Outcome o =
      run_program({"diff", (scratch / "a.safetensors").string(), (scratch / "b.safetensors").string()});
  CHECK(o.code == 1);
  CHECK_MESSAGE(o.out.find(": 1 in A, 1.0000000000000002 in B; ") != o.out.npos, o.out);
}

TEST_CASE("diff takes single files, too, and names them") {
  const Flipped f;
  const std::string a = f.a + "/model.safetensors", b = f.b + "/model.safetensors";
  const Outcome o = run_program({"diff", a, b});
  CHECK(o.code == 1);
  CHECK(o.out.starts_with("A  " + a + ": NVFP4 checkpoint, modelopt, 25 tensors\nB  " + b + ": "));
  CHECK(o.out.find("other files") == o.out.npos);
}

TEST_CASE("diff says where the first value differs, and by how much") {
  const Flipped f;
  const Outcome text = run_program({"diff", f.a, f.b});
  CAPTURE(text.out);
  CHECK(text.out.find("different\n  " + kBlock +
                      ".1.down_proj: 1 of 1536 values of NVFP4 [48, 32], first at expert 1, row 2, column "
                      "16: 0.75 in A, -1 in "
                      "B; cosine ") != text.out.npos);
  CHECK(text.out.find("other files, different: config.json\n") != text.out.npos);
  CHECK(text.out.ends_with("9 compared: 8 equal (8 byte for byte), 1 different; 1 fails\n"));
  CHECK(run_program({"diff", f.a, f.b, "-q"}).out.empty());
}

TEST_CASE("diff of a conversion that rounds says so, and how its size is judged") {
  const Scratch scratch;
  write_save(sound_checkpoint(), scratch / "a");
  const std::string a = (scratch / "a").string(), b = (scratch / "b").string();
  REQUIRE(run_program({"convert", a, b, "--to", "bf16", "-q"}).code == 0);
  const std::string hint =
      "hint: all that differ have another format in B (NVFP4 against BF16), as after a conversion";
  const Outcome rounded = run_program({"diff", a, b});
  CHECK_MESSAGE(rounded.out.find(hint) != rounded.out.npos, rounded.out);
  const Outcome judged = run_program({"diff", a, b, "--fail-on", "snr<20"});
  CHECK_MESSAGE((judged.code == 0 && judged.out.find("hint:") == judged.out.npos), judged.out);
  CHECK(run_program({"diff", Flipped().a, Flipped().b}).out.find("hint:") == std::string::npos);
}

TEST_CASE("diff --json holds every entry, row and file, the same for any number of jobs") {
  const Flipped f;
  const Outcome one = run_program({"diff", f.a, f.b, "--json", "-j", "1"});
  CHECK(one.err.empty());
  CHECK(run_program({"diff", f.a, f.b, "--json", "-j", "7"}).out == one.out);
  const Json json = parse_json("stdout", one.out);
  CHECK(json["failed"] == 1);
  CHECK(json["counts"]["equal"] == 8);
  CHECK(json["counts"]["different"] == 1);
  REQUIRE(json["entries"].size() == 9);
  for (const Json& e : json["entries"]) {
    if (e["class"] == "equal") continue;
    CHECK(e["name"] == kBlock + ".1.down_proj");
    CHECK(e["kind"] == "weights");
    CHECK(e["layer"] == "model.layers.0");
    CHECK(e["projection"] == "mlp.experts.down_proj");
    CHECK(e["expert"] == 1);
    CHECK(e["a"]["tensor"] == kBlock + ".1.down_proj.weight");
    CHECK(e["figures"]["different"] == 1);
    CHECK(e["figures"]["first"] == Json{{"expert", 1}, {"n", 2}, {"k", 16}, {"a", 0.75}, {"b", -1.0}});
    CHECK(e["figures"]["max_abs"] == 1.75);
  }
  CHECK(json["files"] == Json::array({{{"name", "config.json"}, {"state", "different"}}}));
}

TEST_CASE("diff compares keys of configs, unless told to ignore them") {
  const Scratch scratch;
  Tensors tensors;
  add_bf16(tensors, "model.norm.weight", {8});
  const std::string a = (scratch / "a").string(), b = (scratch / "b").string(), c = (scratch / "c").string();
  write_checkpoint(a, {tensors}, R"({"rope_theta": 500000, "use_cache": true})");
  write_checkpoint(b, {tensors}, R"({"rope_theta": 10000, "use_cache": false})");
  write_checkpoint(c, {tensors}, R"({"rope_theta": 500000.0, "use_cache": false})");
  const Outcome text = run_program({"diff", a, b});
  CHECK(text.code == 1);
  CHECK_MESSAGE(
      text.out.find("config\n  config.json: rope_theta: 500000 against 10000\n\nother keys of configs\n  "
                    "config.json: use_cache: true against false\n") != text.out.npos,
      text.out);
  CHECK(text.out.ends_with("1 compared: 1 equal (1 byte for byte), 1 key of configs; 1 fails\n"));
  CHECK(run_program({"diff", a, b, "--config", "ignore"}).code == 0);
  CHECK(run_program({"diff", a, b, "--fail-on", "different"}).code == 0);
  CHECK(run_program({"diff", a, b, "--fail-on", "config"}).code == 1);
  CHECK(run_program({"diff", a, c}).code == 0);
  const Json json = parse_json("stdout", run_program({"diff", a, b, "--json"}).out);
  CHECK(json["failed"] == 1);
  CHECK(
      json["config"][0] ==
      Json{
          {"file", "config.json"}, {"key", "rope_theta"}, {"a", "500000"}, {"b", "10000"}, {"counts", true}});
}

TEST_CASE("diff compares artifacts and dialects") {
  const Scratch scratch;
  const std::string g8 = (scratch / "g8").string(), v7 = (scratch / "v7").string(),
                    ct = (scratch / "ct").string();
  REQUIRE(run_program({"convert", kOther, g8, "--to", "g8", "-q"}).code == 0);
  REQUIRE(run_program({"convert", kOther, v7, "--to", "v7", "-q"}).code == 0);
  REQUIRE(run_program({"convert", kOther, ct, "--to", "nvfp4", "-q"}).code == 0);
  CHECK(run_program({"diff", kOther, g8}).code == 0);
  CHECK(run_program({"diff", g8, ct}).code == 0);
  const Outcome pruned = run_program({"diff", kOther, v7});
  CHECK(pruned.code == 1);
  CHECK(
      pruned.out.find("by layer and projection, of what differs\n  model.layers.0.mlp.experts.down_proj ") !=
      pruned.out.npos);
  CHECK(run_program({"diff", kOther, v7, "--fail-on", "snr<5,removed,added"}).code == 0);
}

}  // namespace cli_diff_test
