#include <doctest/doctest.h>
#include <fmt/format.h>

#include "lib/recipe/selection/output_matrix.h"
#include "tests/support/checkpoint_builder.h"
#include "tests/support/conversion.h"
#include "tests/support/message.h"
#include "tests/support/one_rule.h"
#include "tests/support/scratch.h"

namespace convert_sources_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;

const std::string kBlock = "model.layers.0.mlp.experts";

Selection also(std::vector<std::string> patterns) { return {{}, {}, parse_patterns(patterns)}; }

/// Converts `tensors` and holds the result against `expected`: those tensors, byte for byte, and none of the
/// modules' own left. Proves the artifact by the slow path too.
void check_conversion(const std::vector<Tensors>& shards, const Bytes& expected, const OneRule& recipe = {}) {
  const Scratch scratch;
  write_checkpoint(scratch / "src", shards);
  convert(scratch / "src", scratch / "out", recipe);
  const ReadTensors ours = read_tensors(scratch / "out");
  for (const auto& [name, bytes] : expected) {
    CAPTURE(name);
    REQUIRE(ours.count(name));
    CHECK((ours.at(name).bytes == bytes));
  }
  for (const auto& [name, tensor] : ours) {
    CAPTURE(name);
    const bool module = name.ends_with(".weight_scale_2") || name.ends_with("_weight_scale_2") ||
                        name.ends_with(".weight_global_scale");
    CHECK(!module);
  }
  const ValidateReport report = validate_from(scratch / "src", scratch / "out");
  CHECK_MESSAGE(report.differences.empty(), text_of(report.differences));
}

}  // namespace

TEST_CASE("any shape packs: N and K no multiples of 4, 8 or 64, one expert, one group of 16") {
  struct Case {
    int64_t e, i, h;
  };
  for (const auto& [e, i, h] :
       {Case{1, 16, 16}, {1, 48, 80}, {3, 48, 80}, {2, 16, 48}, {2, 112, 16}, {5, 80, 272}}) {
    CAPTURE(e);
    CAPTURE(i);
    CAPTURE(h);
    const ExpertSet experts = random_experts(e, i, h);
    Tensors tensors;
    add_experts(tensors, kBlock, experts);
    check_conversion({tensors}, expected_v7(kBlock, experts));
  }
}

TEST_CASE("single linears pack for any N, down to one row") {
  for (const int64_t n : {1, 2, 3, 5, 7, 13, 67}) {
    for (const int64_t k : {16, 48, 1040}) {
      CAPTURE(n);
      CAPTURE(k);
      const Nvfp4Matrix m = random_matrix(n, k, static_cast<unsigned>(n * k));
      Tensors tensors;
      add_modelopt(tensors, "model.layers.0.self_attn.o_proj", m);
      Bytes expected;
      add_expected_v7(expected, "model.layers.0.self_attn.o_proj.", {m});
      check_conversion({tensors}, expected, {{.selection = also({"model.layers.0.self_attn.o_proj"})}});
    }
  }
}

TEST_CASE("experts of both dialects give the same bytes") {
  const ExpertSet experts = random_experts(2, 32, 48);
  Tensors tensors;
  for (size_t e = 0; e < 2; ++e) {
    add_compressed_tensors(tensors, fmt::format("{}.{}.gate_proj", kBlock, e), experts.gate[e]);
    add_modelopt(tensors, fmt::format("{}.{}.up_proj", kBlock, e), experts.up[e]);
    add_compressed_tensors(tensors, fmt::format("{}.{}.down_proj", kBlock, e), experts.down[e]);
  }
  check_conversion({tensors}, expected_v7(kBlock, experts));
}

TEST_CASE("experts come in the order of their numbers, not of their names") {
  const ExpertSet experts = random_experts(12, 16, 16);  // 10 and 11 sort before 2
  Tensors tensors;
  add_experts(tensors, kBlock, experts);
  check_conversion({tensors}, expected_v7(kBlock, experts));
}

TEST_CASE("a layer spread over shards is found: gate in one, up in another, scales in a third") {
  const ExpertSet experts = random_experts(2, 16, 48);
  Tensors all, shards[3];
  add_experts(all, kBlock, experts);
  for (TensorData& t : all) {
    const size_t shard =
        t.name.find("scale") != std::string::npos ? 2 : t.name.find("gate") != std::string::npos;
    shards[shard].push_back(t);
  }
  check_conversion({shards[0], shards[1], shards[2]}, expected_v7(kBlock, experts));
}

TEST_CASE("without an index every file is read") {
  const ExpertSet experts = random_experts(2, 16, 16);
  Tensors all;
  add_experts(all, kBlock, experts);
  const Scratch scratch;
  const auto middle = all.begin() + 5;
  write_checkpoint(scratch / "src", {Tensors(all.begin(), middle)});
  write_safetensors(scratch / "src/more.safetensors", Tensors(middle, all.end()));
  convert(scratch / "src", scratch / "out");
  const ReadTensors ours = read_tensors(scratch / "out");
  for (const auto& [name, bytes] : expected_v7(kBlock, experts)) CHECK((ours.at(name).bytes == bytes));
}

TEST_CASE("a global scale may be 0-d or [1]") {
  const ExpertSet experts = random_experts(1, 16, 16);
  Tensors tensors;
  add_modelopt(tensors, kBlock + ".0.gate_proj", experts.gate[0], {});
  add_modelopt(tensors, kBlock + ".0.up_proj", experts.up[0], {1});
  add_modelopt(tensors, kBlock + ".0.down_proj", experts.down[0], {1});
  check_conversion({tensors}, expected_v7(kBlock, experts));
}

TEST_CASE("an expert without gate has up alone in w13") {
  const std::string block = "backbone.layers.1.mixer.experts";
  ExpertSet experts = random_experts(3, 48, 32);
  experts.gate.clear();
  Tensors tensors;
  add_experts(tensors, block, experts);
  check_conversion({tensors}, expected_v7(block, experts));
}

TEST_CASE("the MLPs of a dense model are converted, each with E = 1") {
  const ExpertSet layers = random_experts(2, 48, 32);
  Tensors tensors;
  Bytes expected;
  for (size_t layer = 0; layer < 2; ++layer) {
    const std::string mlp = fmt::format("model.layers.{}.mlp", layer);
    add_modelopt(tensors, mlp + ".gate_proj", layers.gate[layer]);
    add_modelopt(tensors, mlp + ".up_proj", layers.up[layer]);
    add_modelopt(tensors, mlp + ".down_proj", layers.down[layer]);
    expected.merge(expected_v7(mlp, {{layers.gate[layer]}, {layers.up[layer]}, {layers.down[layer]}}));
  }
  check_conversion({tensors}, expected);
}

TEST_CASE("gate and up of a dense model in one matrix are its w13") {
  const ExpertSet layer = random_experts(1, 48, 32);
  const Bytes expected = expected_v7("model.layers.0.mlp", layer);
  Tensors tensors;
  add_modelopt(tensors, "model.layers.0.mlp.gate_up_proj", stack_rows(layer.gate[0], layer.up[0]));
  add_modelopt(tensors, "model.layers.0.mlp.down_proj", layer.down[0]);
  check_conversion({tensors}, expected);
  const Scratch scratch;
  write_checkpoint(scratch / "src", {tensors});
  convert(scratch / "src", scratch / "g8", {{.to = "g8"}});
  CHECK(validate_from(scratch / "src", scratch / "g8").differences.empty());
  tensors.resize(3);
  write_checkpoint(scratch / "half", {tensors});
  CHECK(message_of([&] { convert(scratch / "half", scratch / "out", OneRule{}); }) ==
        "model.layers.0.mlp: expected gate_up and down as NVFP4, found gate_up");
}

TEST_CASE("beside experts, shared experts and MLPs pass through unless --also names them") {
  const ExpertSet experts = random_experts(2, 16, 32), shared = random_experts(1, 48, 32, 50);
  Tensors tensors;
  add_experts(tensors, kBlock, experts);
  const std::string block = "model.layers.0.mlp.shared_expert";
  add_modelopt(tensors, block + ".gate_proj", shared.gate[0]);
  add_modelopt(tensors, block + ".up_proj", shared.up[0]);
  add_modelopt(tensors, block + ".down_proj", shared.down[0]);
  Bytes expected = expected_v7(kBlock, experts);
  expected.merge(expected_v7(block, shared));
  for (const char* pattern : {"model.layers.0.mlp.shared_expert", "*.shared_expert", "re:.*shared_expert$",
                              "model.layers.?.mlp.shared*"}) {
    CAPTURE(std::string(pattern));
    check_conversion({tensors}, expected, {{.selection = also({pattern})}});
  }

  const Scratch scratch;
  write_checkpoint(scratch / "src", {tensors});
  const ConvertResult result = convert(scratch / "src", scratch / "out");
  const ReadTensors ours = read_tensors(scratch / "out");
  CHECK((ours.at(block + ".up_proj.weight").bytes == shared.up[0].codes));
  CHECK(!ours.count(block + ".w13_comp"));
  REQUIRE(findings_of(result.findings, "passed-through").size() == 1);
  CHECK(findings_of(result.findings, "passed-through")[0].message.starts_with("3 NVFP4 modules"));
}

TEST_CASE("one matrix of a block named by --also is a single linear") {
  const ExpertSet experts = random_experts(1, 16, 32), shared = random_experts(1, 48, 32, 50);
  Tensors tensors;
  add_experts(tensors, kBlock, experts);
  const std::string block = "model.layers.0.mlp.shared_expert";
  add_modelopt(tensors, block + ".gate_proj", shared.gate[0]);
  add_modelopt(tensors, block + ".up_proj", shared.up[0]);
  add_modelopt(tensors, block + ".down_proj", shared.down[0]);
  const Scratch scratch;
  write_checkpoint(scratch / "src", {tensors});
  convert(scratch / "src", scratch / "out", {{.selection = also({block + ".up_proj"})}});
  const ReadTensors ours = read_tensors(scratch / "out");
  Bytes expected;
  add_expected_v7(expected, block + ".up_proj.", {shared.up[0]});
  for (const auto& [name, bytes] : expected) CHECK((ours.at(name).bytes == bytes));
  CHECK(!ours.count(block + ".up_proj.weight"));
  CHECK((ours.at(block + ".down_proj.weight").bytes == shared.down[0].codes));
}

TEST_CASE("include and exclude choose among the default set") {
  const ExpertSet experts = random_experts(2, 16, 16);
  Tensors tensors;
  for (const int layer : {0, 1, 2})
    add_experts(tensors, fmt::format("model.layers.{}.mlp.experts", layer), experts);
  const Scratch scratch;
  write_checkpoint(scratch / "src", {tensors});
  const auto converted = [&](std::vector<std::string> include, std::vector<std::string> exclude) {
    const Checkpoint c = Checkpoint::open(scratch / "src");
    std::string blocks;
    for (const OutputMatrix& t : select_matrices(c, {parse_patterns(include), parse_patterns(exclude), {}})) {
      if (t.name.ends_with("w13")) blocks += t.name.substr(13, 1);
    }
    return blocks;
  };
  CHECK(converted({}, {}) == "012");
  CHECK(converted({"model.layers.1.mlp.experts"}, {}) == "1");
  CHECK(converted({"model.layers.[12].*"}, {}) == "12");
  CHECK(converted({}, {"re:model\\.layers\\.(0|2)\\."}) == "1");
  CHECK(converted({"model.layers.[12].*"}, {"model.layers.2.mlp.experts"}) == "1");
}

}  // namespace convert_sources_test
