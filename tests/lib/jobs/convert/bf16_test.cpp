#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>

#include "formats/e2m1.h"
#include "formats/e4m3.h"
#include "formats/error.h"
#include "formats/half.h"
#include "lib/base/io/file.h"
#include "tests/support/checkpoint_builder.h"
#include "tests/support/conversion.h"
#include "tests/support/one_rule.h"
#include "tests/support/scratch.h"

namespace bf16_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;

fs::path golden(const std::string& name) { return fs::path(TWOFOUR_GOLDEN_DIR) / name / "src"; }

OneRule to_bf16() {
  OneRule recipe;
  recipe.to = "bf16";
  return recipe;
}

/// Weights of a matrix, [n, k] or, turned, [k, n].
std::vector<uint16_t> weights_of(const Nvfp4Matrix& m, bool turned) {
  std::vector<uint16_t> out(static_cast<size_t>(m.n * m.k));
  for (int64_t n = 0; n < m.n; ++n) {
    for (int64_t k = 0; k < m.k; ++k) {
      const unsigned code = m.codes[static_cast<size_t>((n * m.k + k) / 2)] >> 4 * (k % 2) & 15u;
      const float scale = e4m3_to_float(m.scales[static_cast<size_t>((n * m.k + k) / 16)]);
      out[static_cast<size_t>(turned ? k * m.n + n : n * m.k + k)] =
          bf16_from_float(e2m1_to_float(code) * scale * m.global);
    }
  }
  return out;
}

}  // namespace

TEST_CASE("golden weights in BF16 are those of another implementation, rounded") {
  const Scratch scratch;
  convert(golden("modelopt-qwen3"), scratch / "out", to_bf16());
  const ReadTensors ours = read_tensors(scratch / "out");
  const ReadTensors dense = read_tensors(golden("modelopt-qwen3").parent_path() / "expect/dense.safetensors");
  const std::string block = "model.layers.0.mlp.experts";
  for (const auto& [part, names] : std::vector<std::pair<std::string, std::vector<std::string>>>{
           {"w13", {"gate_proj", "up_proj"}}, {"w2", {"down_proj"}}}) {
    const auto expected = dense.at(block + "." + part + ".dense").as<float>();
    size_t at = 0;
    for (int e = 0; e < 4; ++e) {
      for (const std::string& name : names) {
        const ReadTensor& weight = ours.at(fmt::format("{}.{}.{}.weight", block, e, name));
        CHECK(weight.dtype == DType::kBF16);
        for (const uint16_t bits : weight.as<uint16_t>()) REQUIRE(bits == bf16_from_float(expected[at++]));
      }
    }
    CHECK(at == expected.size());
  }
}

TEST_CASE("a BF16 checkpoint has weights alone, no scales, and says nothing of quantization") {
  for (const char* name : {"modelopt-qwen3", "compressed-tensors-qwen3", "modelopt-mixtral-uneven"}) {
    CAPTURE(name);
    const Scratch scratch;
    convert(golden(name), scratch / "out", to_bf16());
    for (const auto& [tensor, value] : read_tensors(scratch / "out")) {
      CAPTURE(tensor);
      CHECK(value.dtype == DType::kBF16);
      CHECK(tensor.ends_with(".weight"));
    }
    const Json config = parse_json("config", read_text(scratch / "out/config.json"));
    CHECK(!config.contains("quantization_config"));
    CHECK(config.contains("num_experts"));
    CHECK(!fs::exists(scratch / "out/hf_quant_config.json"));
    const ValidateReport report = validate_from(golden(name), scratch / "out");
    CHECK_MESSAGE(report.differences.empty(), text_of(report.differences));
    CHECK(report.source_tensors == read_tensors(golden(name)).size());
    CHECK(validate(scratch / "out").differences.empty());
  }
}

TEST_CASE("input scales that BF16 has no use for are left out with a warning") {
  const Checkpoint source = Checkpoint::open(golden("modelopt-qwen3"));
  const auto count = std::count_if(source.tensors().begin(), source.tensors().end(),
                                   [](const TensorInfo& t) { return t.name.ends_with(".input_scale"); });
  REQUIRE(count > 0);
  const auto found = findings_of(make_plan(source, to_bf16()).findings, "input-scales-dropped");
  REQUIRE(found.size() == 1);
  CHECK(found[0].severity == Severity::kWarning);
  CHECK(found[0].message == fmt::format("{} input scales are dropped: the output quantizes nothing", count));
}

TEST_CASE("modules that are left out stay NVFP4, and the configuration tells the others") {
  const Scratch scratch;
  Tensors tensors;
  add_modelopt(tensors, "model.layers.0.mlp.down_proj", random_matrix(16, 32, 1));
  add_modelopt(tensors, "model.layers.0.self_attn.o_proj", random_matrix(16, 32, 2));
  write_checkpoint(scratch / "src", {tensors}, R"({"quantization_config":
      {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]}})");
  write_text(
      scratch / "src/hf_quant_config.json",
      R"({"quantization": {"quant_algo": "NVFP4", "group_size": 16, "exclude_modules": ["lm_head"]}})");
  OneRule some = to_bf16();
  some.selection.include = parse_patterns({"*self_attn*"});
  convert(scratch / "src", scratch / "out", some);
  const ReadTensors ours = read_tensors(scratch / "out");
  CHECK(ours.at("model.layers.0.self_attn.o_proj.weight").dtype == DType::kBF16);
  CHECK(ours.at("model.layers.0.mlp.down_proj.weight").dtype == DType::kU8);
  CHECK(ours.size() == 4);
  const Json names = {"model.layers.0.self_attn.o_proj"};  // of linears that the output has
  const Json config = parse_json("config", read_text(scratch / "out/config.json"));
  CHECK(config["quantization_config"]["ignore"] == names);
  const Json file = parse_json("hf", read_text(scratch / "out/hf_quant_config.json"));
  CHECK(file["quantization"]["exclude_modules"] == names);
  CHECK(validate_from(scratch / "src", scratch / "out").differences.empty());

  some.selection.include = parse_patterns({"*.mlp.experts.*"});
  CHECK_THROWS_WITH_AS(make_plan(Checkpoint::open(scratch / "src"), some),
                       "--include '*.mlp.experts.*': expected to match NVFP4 modules "
                       "(model.layers.0.mlp.down_proj), found none",
                       Error);
}

TEST_CASE("stacks keep their own name and the order of their axes") {
  std::vector<Nvfp4Matrix> experts;
  for (unsigned e = 0; e < 3; ++e)
    experts.push_back(random_matrix(20, 48, e, 0.1f * static_cast<float>(e + 1)));
  for (const bool k_outer : {false, true}) {
    const Scratch scratch;
    Tensors tensors;
    add_stack(tensors, "model.layers.0.mlp.experts.down_proj", experts, k_outer, {3});
    write_checkpoint(scratch / "src", {tensors});
    convert(scratch / "src", scratch / "out", to_bf16());
    const ReadTensors out = read_tensors(scratch / "out");
    CHECK(out.size() == 1);
    const ReadTensor& weight = out.at("model.layers.0.mlp.experts.down_proj");
    CHECK(weight.shape == (k_outer ? std::vector<int64_t>{3, 48, 20} : std::vector<int64_t>{3, 20, 48}));
    std::vector<uint16_t> expected;
    for (const Nvfp4Matrix& m : experts) {
      const auto weights = weights_of(m, k_outer);
      expected.insert(expected.end(), weights.begin(), weights.end());
    }
    CHECK((weight.as<uint16_t>() == expected));
    CHECK(validate_from(scratch / "src", scratch / "out").differences.empty());
  }
}

TEST_CASE("stacks stored in another order than their family's become rows or columns as it has them") {
  // Each is square on one side, so that a reader could not tell by its shape.
  for (const auto& [model_type, by_columns] :
       {std::pair("gemma4_text", false), {"qwen3_5_moe_text", false}, {"llama4_text", true}}) {
    for (const int64_t i : {32, 64}) {
      CAPTURE(model_type);
      CAPTURE(i);
      const Scratch scratch;
      const std::vector<Nvfp4Matrix> up{random_matrix(2 * i, 64, 1)}, down{random_matrix(64, i, 2)};
      Tensors tensors;
      const std::string block = "model.layers.0.mlp.experts";
      add_stack(tensors, block + ".gate_up_proj", up, !by_columns, {});
      add_stack(tensors, block + ".down_proj", down, !by_columns, {});
      write_checkpoint(scratch / "src", {tensors},
                       fmt::format(R"({{"model_type": "{}", "hidden_size": 64}})", model_type));
      convert(scratch / "src", scratch / "out", to_bf16());
      const ReadTensors out = read_tensors(scratch / "out");
      CHECK((out.at(block + ".gate_up_proj").as<uint16_t>() == weights_of(up[0], by_columns)));
      CHECK((out.at(block + ".down_proj").as<uint16_t>() == weights_of(down[0], by_columns)));
      CHECK(validate_from(scratch / "src", scratch / "out").differences.empty());
    }
  }
}

TEST_CASE("large weights derived in ranges are the same for any number of jobs") {
  for (const bool k_outer : {false, true}) {
    const Scratch scratch;
    const std::vector<Nvfp4Matrix> experts{random_matrix(528, 3008, 1, 0.5f),
                                           random_matrix(528, 3008, 2, 0.3f),
                                           random_matrix(528, 3008, 3, 0.7f)};
    Tensors tensors;
    add_stack(tensors, "model.layers.0.mlp.experts.down_proj", experts, k_outer, {3});
    write_checkpoint(scratch / "src", {tensors});
    convert(scratch / "src", scratch / "one", to_bf16());
    ConvertOptions options;
    options.jobs = 3;
    convert(scratch / "src", scratch / "three", to_bf16(), options);
    CHECK((read_tree(scratch / "one") == read_tree(scratch / "three")));
    std::vector<uint16_t> expected;
    for (const Nvfp4Matrix& m : experts) {
      const auto weights = weights_of(m, k_outer);
      expected.insert(expected.end(), weights.begin(), weights.end());
    }
    CHECK((read_tensors(scratch / "one").begin()->second.as<uint16_t>() == expected));
    const std::string manifest = read_text(scratch / "one" / kManifestName);
    const ReadTensors source = read_tensors(scratch / "src");
    for (const char* suffix : {"", "_weight_scale"}) {
      const auto& bytes = source.at(std::string("model.layers.0.mlp.experts.down_proj") + suffix).bytes;
      CHECK(manifest.find(hash_bytes(bytes).hex()) != std::string::npos);
    }
    CHECK(validate_from(scratch / "src", scratch / "one").differences.empty());
  }
}

TEST_CASE("block scales that are not valid are refused, one flipped bit is found") {
  const Scratch scratch;
  Tensors tensors;
  Nvfp4Matrix m = random_matrix(16, 32, 1);
  add_modelopt(tensors, "a", m);
  m.scales[5] = 0x7F;
  add_modelopt(tensors, "b", m);
  write_checkpoint(scratch / "src", {tensors});
  CHECK_THROWS_WITH_AS(
      convert(scratch / "src", scratch / "out", to_bf16()),
      "model.safetensors: b.weight_scale: expected block scales that are not negative and not "
      "NaN, found byte 0x7F at 5",
      Error);
  CHECK(!fs::exists(scratch / "out"));
  convert(golden("modelopt-qwen3"), scratch / "out", to_bf16());
  const Checkpoint c = Checkpoint::open(scratch / "out");
  for (size_t i = 0; i < c.tensors().size(); ++i) {
    const uint64_t at = c.shard_of(i).data_begin + c.tensors()[i].begin + 7;
    flip_bit(c.shard_of(i).file.path(), at, 1);
    const auto found =
        findings_of(validate_from(golden("modelopt-qwen3"), scratch / "out").differences, "bytes");
    REQUIRE(found.size() == 1);
    CHECK(found[0].where == c.tensors()[i].name);
    flip_bit(c.shard_of(i).file.path(), at, 1);
  }
}

TEST_CASE("a tensor without a name goes along, whatever the rest becomes") {
  const Scratch scratch;
  Tensors tensors;
  for (const char* leaf : {"gate_proj", "up_proj", "down_proj"})
    add_modelopt(tensors, std::string("model.layers.0.mlp.") + leaf, random_matrix(16, 16, 1));
  add_bf16(tensors, "", {3, 2});
  write_checkpoint(scratch / "src", {tensors});
  const ReadTensors before = read_tensors(scratch / "src");
  for (const std::string layout : {"bf16", "nvfp4", "prune"}) {
    CAPTURE(layout);
    OneRule recipe;
    recipe.to = layout;
    if (layout == "prune") recipe.pattern = "2:4";
    convert(scratch / "src", scratch / layout, recipe);
    CHECK((read_tensors(scratch / layout).at("") == before.at("")));
    const ValidateReport report = validate_from(scratch / "src", scratch / layout);
    CHECK_MESSAGE(report.differences.empty(), text_of(report.differences));
  }
}

}  // namespace bf16_test
