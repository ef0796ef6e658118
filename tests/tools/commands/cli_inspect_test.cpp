#include <doctest/doctest.h>
#include <fmt/format.h>

#include <filesystem>

#include "formats/json.h"
#include "lib/synth/synth.h"
#include "tests/support/checkpoint_builder.h"
#include "tests/support/outcome.h"
#include "tests/support/scratch.h"

namespace cli_inspect_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;

const std::string kSource = std::string(TWOFOUR_GOLDEN_DIR) + "/modelopt-qwen3/src";

}  // namespace

TEST_CASE("inspect accounts for every byte of a directory") {
  const Scratch scratch;
  fs::copy(kSource, scratch / "c", fs::copy_options::recursive);
  fs::create_directory(scratch / "c" / "sub");
  fs::copy(kSource + "/config.json", scratch / "c" / "sub" / "more.json");
  fs::copy(kSource + "/model-00001-of-00002.safetensors", scratch / "c" / "left.safetensors");  // in no index
  REQUIRE(run_program({"convert", kSource, (scratch / "v7").string(), "--to", "v7", "-q"}).code == 0);
  for (const char* name : {"c", "v7"}) {
    const std::string path = (scratch / name).string();
    uint64_t bytes = 0, others = 0;
    for (const auto& entry : fs::recursive_directory_iterator(path)) {
      if (entry.is_regular_file()) bytes += entry.file_size();
    }
    const Json json = json_of(run_program({"inspect", path, "--json"}));
    for (const auto& [file, size] : json["other_files"].items()) others += size.get<uint64_t>();
    CHECK(json["total_bytes"] == bytes);
    CHECK(json["data_bytes"].get<uint64_t>() + json["header_bytes"].get<uint64_t>() + others == bytes);
    const Outcome text = run_program({"inspect", path});
    CHECK_MESSAGE(text.out.find(fmt::format("other files; {} in all\n", bytes)) != std::string::npos,
                  text.out);
  }
}

TEST_CASE("inspect shows tensors as a tree, numbers folded") {
  const Outcome o = run_program({"inspect", kSource, "--tensor", "*.experts.*.up_proj.weight*"});
  std::string squeezed;
  for (const char c : o.out) {
    if (c != ' ' || !squeezed.ends_with(' ')) squeezed += c;
  }
  CHECK_MESSAGE(
      squeezed.find("\nmodel.layers.0.mlp.experts.0-3.up_proj 10.4 kB\n weight 4 x U8 [48, 48] 9.22 kB\n "
                    "weight_scale 4 x F8_E4M3 [48, 6] 1.15 kB\n") != std::string::npos,
      o.out);
}

TEST_CASE("inspect gives the figures of each module, of an artifact those of what it stands for") {
  const Scratch scratch;
  const std::string v7 = (scratch / "v7").string();
  REQUIRE(run_program({"convert", kSource, v7, "--to", "v7", "-q"}).code == 0);
  const Json source = json_of(run_program({"inspect", kSource, "--stats", "--json"}))["nvfp4_modules"],
             pruned = json_of(run_program({"inspect", v7, "--stats", "--json", "-j", "3"}))["nvfp4_modules"];
  REQUIRE(source.size() == 4);
  REQUIRE(pruned.size() == 4);
  for (size_t i = 0; i < 4; ++i) {
    CHECK(source[i]["name"] == pruned[i]["name"]);
    CHECK(source[i]["count"] == source[i]["members"].size());
    const bool expert = source[i]["members"].size() == 4;
    for (size_t x = 0; x < source[i]["members"].size(); ++x) {
      const Json &a = source[i]["members"][x], &b = pruned[i]["members"][x];
      CHECK(a["name"] == b["name"]);
      CHECK(a["global_scale_max"] == b["global_scale_max"]);
      CHECK(a["share_2_4"] < 0.5);
      CHECK((b["share_2_4"] == 1.0) == expert);
      if (expert) CHECK(b["zero_share"] >= 0.5);
    }
  }
  const Outcome text = run_program({"inspect", kSource, "--stats", "-v"});
  CHECK(text.out.find("\n      model.layers.0.mlp.experts.3.up_proj  zero ") != std::string::npos);
}

TEST_CASE("inspect of an artifact in a layout shows its own sizes, not its source's") {
  const Scratch scratch;
  for (const std::string layout : {"v7", "v7-packed"}) {
    const std::string out = (scratch / layout).string();
    REQUIRE(run_program({"convert", kSource, out, "--to", layout, "-q"}).code == 0);
    const Json own = parse_json("stdout", run_program({"inspect", out, "--json"}).out),
               source = parse_json("stdout", run_program({"inspect", kSource, "--json"}).out);
    CHECK(own["default_set_bytes"] == own["layout_bytes"][layout]);
    CHECK(own["default_set_bytes"] < source["default_set_bytes"]);
    CHECK(own["layout_bytes"] == source["layout_bytes"]);
    uint64_t modules = 0;
    for (const Json& group : own["nvfp4_modules"]) {
      if (group["name"].get<std::string>().find(".experts.") != std::string::npos)
        modules += group["bytes"].get<uint64_t>();
    }
    CHECK(modules == own["default_set_bytes"]);
  }
}

TEST_CASE("names with line ends forge no lines") {
  const Scratch scratch;
  write_safetensors(scratch / "m.safetensors", {{"a\\n7 forged\\r\\tb", DType::kU8, {1}, {1}}});
  const Outcome text = run_program({"inspect", (scratch / "m.safetensors").string()});
  CHECK_MESSAGE(text.out.find("\na\\x0A7 forged\\x0D\\x09b ") != std::string::npos, text.out);
}

TEST_CASE("names reach a terminal with nothing that it would obey or hide, a JSON document as they are") {
  const Scratch scratch;
  // A right-to-left override, a C1 control, a zero-width space, an escape, and letters that are harmless.
  const std::string name = "a\u202Eb\u009Bc\u200Bd\x1B[31m\u00E9\u65E5\U0001F600";
  const std::string stored =
      "a\u202Eb\u009Bc\u200Bd\\u001B[31m\u00E9\u65E5\U0001F600";  // JSON has no bare escape
  write_safetensors(scratch / "m.safetensors", {{stored, DType::kU8, {1}, {1}}});
  const std::string path = (scratch / "m.safetensors").string();
  const std::string shown = "a\\u{202E}b\\u{9B}c\\u{200B}d\\x1B[31m\u00E9\u65E5\U0001F600";
  const Outcome text = run_program({"inspect", path});
  CHECK_MESSAGE(text.out.find("\n" + shown + " ") != std::string::npos, text.out);
  CHECK(text.out.find("1 tensor in 1 file\n") != std::string::npos);
  CHECK(json_of(run_program({"inspect", path, "--json"}))["tensors"][0]["name"] == name);
  // An argument need not be UTF-8.
  const Outcome error = run_program({"inspect", path, "--at", name + "\xC3\x28\xFF:0"});
  CHECK(error.code == 2);
  CHECK_MESSAGE(error.err.find(shown + "\\xC3(\\xFF") != std::string::npos, error.err);
}

TEST_CASE("inspect --values prints a slice as NumPy would") {
  const Scratch scratch;
  write_safetensors(scratch / "m.safetensors", {{"t", DType::kI8, {2, 3}, {1, 2, 3, 254, 5, 100}}});
  const std::string path = (scratch / "m.safetensors").string();
  CHECK(run_program({"inspect", path, "--values", "t"}).out ==
        "t: I8 [2, 3]\n[[  1   2   3]\n [ -2   5 100]]\n");
  CHECK(run_program({"inspect", path, "--values", "t[1, 0]"}).out == "t[1, 0]: I8 [2, 3]\n-2\n");
  CHECK(json_of(run_program({"inspect", path, "--values", "t[1, 1:]", "--json"})) ==
        Json{{"schema_version", 1},
             {"name", "t"},
             {"format", "I8"},
             {"whole", {2, 3}},
             {"shape", {2}},
             {"values", {5.0, 100.0}}});
  CHECK(run_program({"inspect", path, "--values", "t[5]"}).code == 2);
  CHECK(run_program({"inspect", path, "--values", "t", "--at", "t:0"}).code == 2);
}

TEST_CASE("inspect finds pruned quads by reading the weights") {
  const Json json = json_of(run_program({"inspect", kSource, "--stats", "--json"}));
  uint64_t codes = 0, weights = 0;
  for (const Json& m : json["nvfp4_modules"]) {
    for (const Json& count : m["stats"]["codes"]) codes += count.get<uint64_t>();
    weights += m["count"].get<uint64_t>() * m["shape"][0].get<uint64_t>() * m["shape"][1].get<uint64_t>() *
               m["shape"][2].get<uint64_t>();
  }
  CHECK(codes == weights);
  CHECK(weights == 4 * 3 * 48 * 96 + 96 * 96);
}

TEST_CASE("inspect accounts for small checkpoints of every shape") {
  const Scratch scratch;
  for (const std::string& shape : synth_shapes()) {
    CAPTURE(shape);
    const std::string path = (scratch / shape).string();
    REQUIRE(run_program({"synth", path, "--shape", shape, "--small", "--vocab", "64", "-q"}).code == 0);
    const Json json = json_of(run_program({"inspect", path, "--json"}));
    uint64_t bytes = 0;
    for (const auto& entry : fs::directory_iterator(path)) bytes += entry.file_size();
    CHECK(json["total_bytes"] == bytes);
  }
}

}  // namespace cli_inspect_test
