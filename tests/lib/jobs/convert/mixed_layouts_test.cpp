#include <doctest/doctest.h>

#include "formats/error.h"
#include "lib/base/io/file.h"
#include "lib/jobs/convert/convert.h"
#include "lib/look/inspect/inspect.h"
#include "lib/recipe/artifact/open_unpacked.h"
#include "lib/write/plan/plan.h"
#include "tests/support/checkpoint_builder.h"
#include "tests/support/conversion.h"
#include "tests/support/scratch.h"
#include "tests/support/weights/stored_experts.h"

namespace mixed_layouts_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;

Rule rule_for(const std::string& to, const std::string& include) {
  Rule rule{.to = to};
  if (!include.empty()) rule.selection.include = parse_patterns({include});
  return rule;
}

Recipe two_layouts(uint64_t max_shard_size = 5'000'000'000) {
  Recipe recipe(rule_for("v7", "model.layers.0.*"), max_shard_size);
  recipe.rules.push_back(rule_for("g8", "model.layers.1.*"));
  return recipe;
}

void write_source(const fs::path& directory) {
  Tensors tensors;
  for (int layer = 0; layer < 3; ++layer) {
    add_experts(tensors, "model.layers." + std::to_string(layer) + ".mlp.experts",
                random_experts(2, 32, 64, static_cast<unsigned>(layer + 1)));
  }
  add_bf16(tensors, "model.norm.weight", {64}, 5);
  write_checkpoint(directory, {tensors}, R"({"num_experts": 2})");
}

ConvertResult convert_mixed(const fs::path& source, const fs::path& out, const Recipe& recipe) {
  const Checkpoint checkpoint = open_source(source);
  Progress progress;
  return convert(checkpoint, make_plan(checkpoint, recipe), out, {}, progress);
}

}  // namespace

TEST_CASE("two rules write two layouts, each as one rule writes it, and both configs say which is where") {
  const Scratch scratch;
  write_source(scratch / "src");
  convert_mixed(scratch / "src", scratch / "mixed", two_layouts());
  const ReadTensors mixed = read_tensors(scratch / "mixed");
  for (const auto& [to, layer] : {std::pair("v7", "model.layers.0."), std::pair("g8", "model.layers.1.")}) {
    CAPTURE(std::string(to));
    convert_mixed(scratch / "src", scratch / to, Recipe(rule_for(to, std::string(layer) + "*")));
    size_t compared = 0;
    for (const auto& [name, tensor] : read_tensors(scratch / to)) {
      if (!name.starts_with(layer)) continue;
      REQUIRE(mixed.contains(name));
      CHECK((mixed.at(name).bytes == tensor.bytes));
      ++compared;
    }
    CHECK(compared >= 6);
  }
  const Json config = parse_json("config.json", read_text(scratch / "mixed/config.json"));
  const Json& entry = config["quantization_config"];
  CHECK(entry["layout"] == "mixed");
  REQUIRE(entry["groups"].size() == 2);
  CHECK(entry["groups"][0]["layout"] == "v7");
  CHECK(entry["groups"][0]["pattern"] == "2:4");
  CHECK(entry["groups"][0]["modules"][0] == "model.layers.0.mlp.experts");
  CHECK(entry["groups"][1]["layout"] == "g8");
  CHECK(entry["groups"][1]["modules"][0] == "model.layers.1.mlp.experts");
  const Json manifest = parse_json("twofour.json", read_text(scratch / "mixed/twofour.json"));
  CHECK(manifest["layout"] == "mixed");
  CHECK(manifest["groups"] == entry["groups"]);
}

TEST_CASE("rules that make one layout write one group, alone and beside another layout") {
  const Scratch scratch;
  write_source(scratch / "src");
  Recipe one(rule_for("v7", "model.layers.2.*"));
  one.rules.push_back(rule_for("v7", "model.layers.0.*"));
  convert_mixed(scratch / "src", scratch / "one", one);
  const Json entry = parse_json("config.json", read_text(scratch / "one/config.json"))["quantization_config"];
  CHECK(entry["layout"] == "v7");
  CHECK(!entry.contains("groups"));
  CHECK(entry["modules"] == Json::array({"model.layers.2.mlp.experts", "model.layers.0.mlp.experts"}));
  CHECK(!parse_json("twofour.json", read_text(scratch / "one/twofour.json")).contains("groups"));
  CHECK(validate_from(scratch / "src", scratch / "one").differences.empty());

  Recipe two = two_layouts();
  two.rules.push_back(rule_for("v7", "model.layers.2.*"));
  convert_mixed(scratch / "src", scratch / "two", two);
  const Json config = parse_json("config.json", read_text(scratch / "two/config.json"));
  const Json& groups = config["quantization_config"]["groups"];
  REQUIRE(groups.size() == 2);
  CHECK(groups[0]["layout"] == "v7");
  CHECK(groups[0]["modules"] == Json::array({"model.layers.0.mlp.experts", "model.layers.2.mlp.experts"}));
  CHECK(groups[1]["layout"] == "g8");
  CHECK(parse_json("twofour.json", read_text(scratch / "two/twofour.json"))["groups"] == groups);
  CHECK(validate_from(scratch / "src", scratch / "two").differences.empty());
}

TEST_CASE("an artifact with two layouts validates, a flipped byte in either is found") {
  const Scratch scratch;
  write_source(scratch / "src");
  convert_mixed(scratch / "src", scratch / "out", two_layouts());
  CHECK(validate(scratch / "out").differences.empty());
  const ValidateReport report = validate_from(scratch / "src", scratch / "out");
  CHECK(report.differences.empty());
  CHECK(report.layers.size() == 2);
  for (const char* name : {"model.layers.0.mlp.experts.w13_comp", "model.layers.1.mlp.experts.w2_weight"}) {
    CAPTURE(std::string(name));
    const Checkpoint c = Checkpoint::open(scratch / "out");
    const size_t tensor = *c.find(name);
    const fs::path file = scratch / "out" / c.shard_of(tensor).name;
    const uint64_t place = c.shard_of(tensor).data_begin + c.tensors()[tensor].begin + 3;
    flip_bit(file, place, 0);
    const ValidateReport damaged = validate_from(scratch / "src", scratch / "out", 0);
    bool is_found = false;
    for (const Finding& f : damaged.differences) is_found = is_found || (f.id == "bytes" && f.where == name);
    CHECK(is_found);
    flip_bit(file, place, 0);
  }
}

TEST_CASE(
    "an artifact with two layouts reads as its source, and the way back is exact where nothing is dropped") {
  const Scratch scratch;
  write_source(scratch / "src");
  convert_mixed(scratch / "src", scratch / "out", two_layouts(3000));
  const Checkpoint source = open_source(scratch / "src"), view = open_source(scratch / "out");
  REQUIRE(view.is_view());
  CHECK(view.nvfp4_modules().size() == source.nvfp4_modules().size());
  for (const char* expert : {"model.layers.1.mlp.experts.0.gate_proj.weight", "model.norm.weight",
                             "model.layers.2.mlp.experts.1.up_proj.weight"}) {
    CAPTURE(std::string(expert));
    const size_t a = *source.find(expert), b = *view.find(expert);
    std::vector<uint8_t> x(source.tensors()[a].bytes()), y(view.tensors()[b].bytes());
    source.read(a, 0, x);
    view.read(b, 0, y);
    CHECK((x == y));
  }
  const Checkpoint stored = Checkpoint::open(scratch / "out");
  CHECK(describe_byte(stored, "model.layers.0.mlp.experts.w13_comp", 0).find("quad") != std::string::npos);
  CHECK(describe_byte(stored, "model.layers.1.mlp.experts.w13_weight", 0).find("n 0") != std::string::npos);
}

TEST_CASE(
    "the first rule that takes a module decides, and what another rule prunes keeps its configuration") {
  const Scratch scratch;
  write_source(scratch / "src");
  const Checkpoint source = open_source(scratch / "src");
  Recipe overlap(rule_for("v7", "model.layers.0.*"));
  overlap.rules.push_back(rule_for("g8", ""));
  const Plan plan = make_plan(source, overlap);
  const auto has = [&](const std::string& name) {
    return std::any_of(plan.tensors.begin(), plan.tensors.end(),
                       [&](auto& t) { return t.info.name == name; });
  };
  CHECK(has("model.layers.0.mlp.experts.w13_comp"));
  CHECK(!has("model.layers.0.mlp.experts.w13_weight"));
  CHECK(has("model.layers.2.mlp.experts.w13_weight"));
  Recipe both(rule_for("v7", "model.layers.0.*"));
  both.rules.push_back(rule_for("prune", "model.layers.1.*"));
  const Plan mixed = make_plan(source, both);
  CHECK(mixed.config.layouts.size() == 1);
  CHECK(std::any_of(mixed.tensors.begin(), mixed.tensors.end(), [](const OutputTensor& t) {
    return t.info.name.starts_with("model.layers.1.mlp.experts.") && t.info.dtype == DType::kU8;
  }));
}

}  // namespace mixed_layouts_test
