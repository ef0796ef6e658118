#include <doctest/doctest.h>

#include <cstring>
#include <filesystem>

#include "formats/json.h"
#include "lib/base/io/file.h"
#include "lib/source/linears/linears.h"
#include "tests/support/conversion.h"
#include "tests/support/message.h"
#include "tests/support/outcome.h"
#include "tests/support/program.h"
#include "tests/support/scratch.h"
#include "tests/support/weights/float_weights.h"

namespace cli_input_scale_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;

/// A synthetic checkpoint of up to four layers and a file of largest magnitudes for their experts.
struct Model {
  explicit Model(const std::vector<std::string>& words) {
    std::vector<std::string> all = {"synth", path("src"), "-q"};
    all.insert(all.end(), words.begin(), words.end());
    REQUIRE(run_program(all).code == 0);
    for (const Linear& m : find_weight_modules(Checkpoint::open(path("src")))) {
      if (m.name.find(".experts.") != m.name.npos && !m.name.starts_with("mtp.") &&
          m.name.find("layers.4.") == m.name.npos)
        amax[m.name] = 100.0f + static_cast<float>(amax.size());
    }
    write_amax();
  }
  void write_amax() const {
    Tensors tensors;
    for (const auto& [name, value] : amax) {
      std::vector<uint8_t> bytes(sizeof(value));
      std::memcpy(bytes.data(), &value, sizeof(value));
      tensors.push_back({name + ".amax", DType::kF32, {}, bytes});
    }
    write_safetensors(scratch / "amax.safetensors", tensors);
  }
  std::string path(const char* name) const { return (scratch / name).string(); }
  std::string from_file() const { return "from " + path("amax.safetensors"); }
  /// Every expert's scale is its amax / 2688, gate and up the larger of theirs.
  void check_scales(const char* out, bool divides) const {
    const ReadTensors tensors = read_tensors(scratch / out);
    for (const auto& [name, value] : amax) {
      CAPTURE(name);
      float most = value;
      for (const auto& [a, b] : {std::pair{"gate_proj", "up_proj"}, {"w1", "w3"}}) {
        for (const auto& [own, other] : {std::pair{a, b}, {b, a}}) {
          if (!name.ends_with(std::string(".") + own)) continue;
          most = std::max(most, amax.at(name.substr(0, name.size() - std::strlen(own)) + other));
        }
      }
      const float scale = most / 2688;
      const auto at = tensors.find(name + (divides ? ".input_global_scale" : ".input_scale"));
      REQUIRE(at != tensors.end());
      CHECK(at->second.as<float>()[0] == (divides ? 1 / scale : scale));
    }
  }
  void check_valid(const char* out) const {
    const Outcome proof = run_program({"validate", path(out), "--source", path("src"), "-q"});
    CHECK_MESSAGE(proof.code == 0, proof.out);
  }

  Scratch scratch;
  std::map<std::string, float> amax;
};

}  // namespace

TEST_CASE("input scales from a file: convert, quantize, a recipe, a plan, resumed") {
  const Model nvfp4({"--shape", "tiny"});
  for (const std::string dialect : {"modelopt", "compressed-tensors"}) {
    const std::vector<std::string> words = {"convert",       nvfp4.path("src"), nvfp4.path("out"), "--to",
                                            "nvfp4",         "--dialect",       dialect,           "-q",
                                            "--input-scale", nvfp4.from_file()};
    // The rest of the model is NVFP4, too, so that its scales are asked for.
    const Outcome refused = run_program(words);
    CHECK(refused.code == 2);
    CHECK(contains(refused.err, "o_proj.amax in the file of input scales, found none"));
  }
  const auto recipe = [&](const std::string& more) {
    write_text(nvfp4.scratch / "recipe.yaml", "format: 1\nrules:\n  - {match: experts, " + more +
                                                  ", input_scale: '" + nvfp4.from_file() + "'}\n");
    return nvfp4.path("recipe.yaml");
  };
  for (const bool divides : {false, true}) {
    fs::remove_all(nvfp4.scratch / "out");
    std::string text = read_text(recipe("to: keep"));
    if (divides) text = "dialect: compressed-tensors\n" + text;
    write_text(nvfp4.scratch / "recipe.yaml", text);
    const Outcome made = run_program(
        {"convert", nvfp4.path("src"), nvfp4.path("out"), "--recipe", nvfp4.path("recipe.yaml"), "-q"});
    REQUIRE_MESSAGE(made.code == 0, made.err);
    nvfp4.check_scales("out", divides);
    nvfp4.check_valid("out");
    // Complete already: it is verified.
    CHECK(run_program({"convert", nvfp4.path("src"), nvfp4.path("out"), "--recipe", nvfp4.path("recipe.yaml"),
                       "-q", "--resume"})
              .code == 0);
  }

  // A plan holds the scales: the file may go.
  recipe("to: keep");
  const Outcome plan =
      run_program({"plan", nvfp4.path("src"), nvfp4.path("parts"), "--recipe", nvfp4.path("recipe.yaml"),
                   "--tasks", "1", "-o", nvfp4.path("plan.json")});
  REQUIRE_MESSAGE(plan.code == 0, plan.err);
  fs::remove(nvfp4.scratch / "amax.safetensors");
  const Outcome task = run_program({"convert", "--plan", nvfp4.path("plan.json"), "--task", "0/1", "-q"});
  REQUIRE_MESSAGE(task.code == 0, task.err);
  REQUIRE(run_program({"merge", nvfp4.path("parts"), "-q"}).code == 0);
  nvfp4.check_scales("parts", false);
  nvfp4.check_valid("parts");

  const Model fp8({"--shape", "deepseek-v3", "--small", "--layers", "4", "--experts", "8"});
  const Outcome made = run_program({"quantize", fp8.path("src"), fp8.path("out"), "--include", "*.experts.*",
                                    "--exclude", "model.layers.4.*", "--input-scale", fp8.from_file(), "-q"});
  REQUIRE_MESSAGE(made.code == 0, made.err);
  fp8.check_scales("out", false);
  fp8.check_valid("out");
}

TEST_CASE("DeepSeek-V4 as released: input scales from a file, 1 by default, never none") {
  const Model v4(
      {"--shape", "deepseek-v4", "--dialect", "released", "--small", "--layers", "3", "--experts", "6"});
  const auto run = [&](const std::vector<std::string>& more) {
    fs::remove_all(v4.scratch / "out");
    std::vector<std::string> words = {"quantize", v4.path("src"), v4.path("out"), "-q"};
    words.insert(words.end(), more.begin(), more.end());
    return run_program(words);
  };
  Outcome o = run({"--include", "*.experts.*", "--input-scale", v4.from_file()});
  REQUIRE_MESSAGE(o.code == 0, o.err);
  v4.check_scales("out", false);
  v4.check_valid("out");
  REQUIRE(run({}).code == 0);
  for (const auto& [name, tensor] : read_tensors(v4.scratch / "out")) {
    if (name.ends_with(".input_scale")) CHECK(tensor.as<float>()[0] == 1);
  }
  v4.check_valid("out");
  check_one_line(run({"--input-scale", "none"}),
                 "--input-scale none: expected input scales in DeepSeek-V4's form");
  CHECK(!fs::exists(v4.scratch / "out"));
}

TEST_CASE("bad files and words of input scales are one line each, before there is an output") {
  Model model({"--shape", "tiny"});
  const auto run = [&](const std::string& words) {
    write_text(model.scratch / "recipe.yaml",
               "format: 1\nrules:\n  - {match: experts, to: keep, input_scale: '" + words + "'}\n");
    const Outcome o = run_program(
        {"convert", model.path("src"), model.path("out"), "--recipe", model.path("recipe.yaml"), "-q"});
    CHECK(!fs::exists(model.scratch / "out"));
    return o;
  };
  check_one_line(run("from " + model.path("none.safetensors")), "none.safetensors: ");
  check_one_line(run("from " + model.path("recipe.yaml")), "recipe.yaml: ");
  for (const char* word : {"given", "from ", "from", "constants", "constant:1", "constant=0"}) {
    CAPTURE(word);
    const std::string source = model.path("src"), out = model.path("out");
    check_one_line(run_program({"convert", source, out, "--to", "nvfp4", "--input-scale", word, "-q"}),
                   "--input-scale: expected ");
  }
  const auto all = model.amax;
  model.amax.erase(model.amax.begin());
  model.write_amax();
  check_one_line(run(model.from_file()),
                 all.begin()->first + ".amax in the file of input scales, found none");
  model.amax = all;
  model.amax["model.layers.7.mlp.experts.0.up_proj"] = 1;
  model.write_amax();
  check_one_line(run(model.from_file()),
                 "model.layers.7.mlp.experts.0.up_proj.amax in the file of input scales: ");
  model.amax = all;
  model.amax.begin()->second = 0;
  model.write_amax();
  check_one_line(run(model.from_file()),
                 all.begin()->first + ".amax: expected the largest magnitude of inputs");
}

TEST_CASE("a conversion that loses W4A4 says how many input scales it drops or does not use") {
  const Scratch scratch;
  const std::string src = (scratch / "src").string(), out = (scratch / "out").string();
  REQUIRE(run_program({"synth", src, "--shape", "llama", "--layers", "2", "--small", "-q"}).code == 0);
  size_t all = 0, packed = 0;
  for (const Linear& m : find_weight_modules(Checkpoint::open(src))) {
    all += m.input_scale.has_value();
    packed += m.input_scale.has_value() && m.name.find(".mlp.") != m.name.npos;
  }
  REQUIRE(packed > 0);
  REQUIRE(packed < all);
  const auto warning = [&](std::vector<std::string> words) {
    words.insert(words.begin(), {"convert", src, out, "--force"});
    const Outcome o = run_program(words);
    CHECK_MESSAGE(o.code == 0, o.err);
    return o.err;
  };
  for (const char* layout : {"v7", "v7-packed", "g8"}) {
    CAPTURE(std::string(layout));
    const std::string text = warning({"--to", layout, "--verbose"});
    CHECK(contains(text, fmt::format("note: {}: {} modules have input scales, which are copied but not used: "
                                     "kernels of {} ",
                                     src, packed, layout)));
    CHECK(contains(text, "[input-scales-unused]"));
  }
  for (const auto& words : std::vector<std::vector<std::string>>{
           {"--to", "bf16"},
           {"--to", "fp8"},
           {"--to", "mxfp4"},
           {"--to", "nvfp4", "--dialect", "compressed-tensors", "--input-scale", "none"}}) {
    CAPTURE(words[1]);
    const std::string text = warning(words);
    CHECK(contains(text, fmt::format("warning: {}: {} input scales are dropped: ", src, all)));
    CHECK(text.find("[input-scales-dropped]") == text.rfind("[input-scales-dropped]"));
  }
  CHECK(warning({"--to", "nvfp4", "--dialect", "compressed-tensors"}).find("input-scales") ==
        std::string::npos);
}

}  // namespace cli_input_scale_test
