// Layouts of sources that are not NVFP4: quantized first, as they are read.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <limits>

#include "formats/error.h"
#include "lib/base/io/file.h"
#include "lib/jobs/convert/conversion.h"
#include "lib/jobs/convert/resume.h"
#include "lib/recipe/artifact/open_unpacked.h"
#include "lib/write/transform/open_to_convert.h"
#include "tests/support/conversion.h"
#include "tests/support/message.h"
#include "tests/support/one_rule.h"
#include "tests/support/scratch.h"
#include "tests/support/weights/float_weights.h"
#include "tests/support/weights/kept_tensors.h"
#include "tests/support/weights/stored_weights.h"

namespace quantized_layout_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;

constexpr const char* kBlock = "model.layers.0.mlp.experts";
/// The modules that `quantize` takes among those that a layout takes by default.
constexpr const char* kExperts = "re:.*experts\\..*";

OneRule to(const std::string& layout) {
  OneRule recipe;
  recipe.to = layout;
  return recipe;
}

OneRule quantize_experts(const std::string& pattern = kExperts) {
  OneRule recipe = to("quantize");
  recipe.dialect = "modelopt";
  recipe.selection.include = parse_patterns({pattern});
  recipe.selection.also = recipe.selection.include;
  return recipe;
}

/// Experts of three matrices each, gate and up of unlike size of weights, with attention beside them.
Tensors expert_model(int64_t e, int64_t i, int64_t h, DType dtype = DType::kBF16) {
  Tensors t;
  for (int64_t x = 0; x < e; ++x) {
    const auto seed = static_cast<unsigned>(10 * x);
    const std::string expert = fmt::format("{}.{}.", kBlock, x);
    add_floats(t, expert + "gate_proj", random_floats(i, h, seed + 1, 0.01f), dtype);
    add_floats(t, expert + "up_proj", random_floats(i, h, seed + 2, 0.5f), dtype);
    add_floats(t, expert + "down_proj", random_floats(h, i, seed + 3), dtype);
  }
  add_floats(t, "model.layers.0.self_attn.q_proj", random_floats(16, h, 7), dtype);
  add_floats(t, "model.layers.0.mlp.gate", random_floats(e, h, 8), dtype);
  add_bf16(t, "model.layers.0.input_layernorm.weight", {h});
  return t;
}

/// The weights of an artifact's source, read back.
ReadTensors shown_by(const fs::path& artifact) {
  const Checkpoint c = open_source(artifact);
  ReadTensors tensors;
  for (size_t i = 0; i < c.tensors().size(); ++i) {
    const TensorInfo& t = c.tensors()[i];
    ReadTensor& to = tensors[t.name];
    to = {t.dtype, t.shape, std::vector<uint8_t>(t.bytes())};
    c.read(i, 0, to.bytes);
  }
  return tensors;
}

/// Every layout of a source is what the layout of the quantized source is; as an artifact it shows that.
void check_layouts(const fs::path& source, const Scratch& scratch,
                   const OneRule& quantize = quantize_experts()) {
  const fs::path between = scratch / "between";
  fs::remove_all(between);
  convert(source, between, quantize);
  for (const std::string layout : {"v7", "v7-packed", "g8"}) {
    CAPTURE(layout);
    const fs::path direct = scratch / "direct", twice = scratch / "twice";
    for (const fs::path& path : {direct, twice}) fs::remove_all(path);
    convert(source, direct, to(layout));
    convert(between, twice, to(layout));
    check_equal(read_tensors(direct), read_tensors(twice));
    CHECK(read_text(direct / "config.json") == read_text(twice / "config.json"));
    check_proven(source, direct);
    if (layout == "g8") check_equal(shown_by(direct), read_tensors(between));
    if (layout == "v7") {
      fs::remove_all(scratch / "pruned");
      convert(between, scratch / "pruned", to("prune"));
      check_equal(shown_by(direct), read_tensors(scratch / "pruned"));
    }
  }
}

MemoryLimits tiny_limits() {
  MemoryLimits limits;
  limits.piece = 32 << 10;
  return limits;
}

}  // namespace

TEST_CASE("experts in floats of every type become what their quantized layouts are") {
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    for (const auto& [i, h] : {std::pair{16, 32}, {24, 48}, {48, 80}, {16, 144}}) {
      CAPTURE(i);
      CAPTURE(h);
      const int64_t inner = i == 24 ? 32 : i;
      const Scratch scratch;
      write_checkpoint(scratch / "src", {expert_model(3, inner, h, dtype)}, R"({"num_experts": 3})");
      check_layouts(scratch / "src", scratch);
    }
  }
}

TEST_CASE("v7 takes rows that are no multiple of 8") {
  const Scratch scratch;
  Tensors t;
  for (int64_t e = 0; e < 2; ++e) {
    const std::string expert = fmt::format("{}.{}.", kBlock, e);
    add_floats(t, expert + "gate_proj", random_floats(16, 48, static_cast<unsigned>(e)));
    add_floats(t, expert + "up_proj", random_floats(16, 48, static_cast<unsigned>(e + 5)));
    add_floats(t, expert + "down_proj", random_floats(48, 16, static_cast<unsigned>(e + 9)));
  }
  add_floats(t, "model.layers.0.self_attn.q_proj", random_floats(13, 48, 3));
  write_checkpoint(scratch / "src", {t});
  OneRule v7 = to("v7");
  v7.selection.also = parse_patterns({"model.layers.0.self_attn.q_proj"});
  convert(scratch / "src", scratch / "out", v7);
  CHECK(read_tensors(scratch / "out").count("model.layers.0.self_attn.q_proj.comp") == 1);
  check_proven(scratch / "src", scratch / "out");
}

TEST_CASE("a dense model's MLPs are the default set") {
  const Scratch scratch;
  write_checkpoint(scratch / "src", {dense_model()});
  check_layouts(scratch / "src", scratch, quantize_experts("re:.*mlp\\..*"));
}

TEST_CASE("FP8 with a scale a tensor, row, block or 32 weights") {
  for (const std::string kind : {"tensor", "row", "block", "mx"}) {
    CAPTURE(kind);
    const Scratch scratch;
    Tensors t;
    unsigned seed = 1;
    const auto add = [&](const std::string& name, int64_t n, int64_t k) {
      fp8_weights({n, k}, ++seed).add_to(t, name + ".weight");
      const bool is_mx = kind == "mx", is_block = kind == "block";
      const auto shape = kind == "tensor" ? std::vector<int64_t>{}
                         : kind == "row"  ? std::vector<int64_t>{n, 1}
                         : is_block       ? std::vector<int64_t>{(n + 127) / 128, (k + 127) / 128}
                                          : std::vector<int64_t>{n, k / 32};
      StoredTensor scales = random_scales(is_mx ? DType::kU8 : DType::kF32, shape, ++seed);
      if (is_mx) {
        for (uint8_t& byte : scales.bytes) byte = static_cast<uint8_t>(120 + byte % 9);
      }
      scales.add_to(t, name + (is_block ? ".weight_scale_inv" : ".weight_scale"));
    };
    for (int64_t e = 0; e < 2; ++e) {
      const std::string expert = fmt::format("{}.{}.", kBlock, e);
      add(expert + "gate_proj", 144, 160);
      add(expert + "up_proj", 144, 160);
      add(expert + "down_proj", 160, kind == "mx" ? 160 : 144);
    }
    if (kind == "mx") {  // K of down is a multiple of 32
      t.clear();
      for (int64_t e = 0; e < 2; ++e) {
        const std::string expert = fmt::format("{}.{}.", kBlock, e);
        add(expert + "gate_proj", 96, 160);
        add(expert + "up_proj", 96, 160);
        add(expert + "down_proj", 160, 96);
      }
    }
    write_checkpoint(scratch / "src", {t});
    check_layouts(scratch / "src", scratch);
  }
}

TEST_CASE("MXFP4 is cast where its exponents allow, else rounded and said so") {
  for (const auto& [low, high] : {std::pair{100, 117}, {90, 130}}) {
    CAPTURE(high);
    const Scratch scratch;
    Tensors t;
    unsigned seed = 1;
    const auto scales = [&, low = low, high = high](DType dtype, std::vector<int64_t> shape) {
      StoredTensor s(dtype, std::move(shape), ++seed);
      for (uint8_t& byte : s.bytes) byte = static_cast<uint8_t>(low + byte % (high - low + 1));
      return s;
    };
    const std::string gpt = "model.layers.0.mlp.experts.", v4 = "layers.1.ffn.experts.0.";
    StoredTensor(DType::kU8, {2, 64, 2, 16}, 1).add_to(t, gpt + "gate_up_proj_blocks");
    scales(DType::kU8, {2, 64, 2}).add_to(t, gpt + "gate_up_proj_scales");
    StoredTensor(DType::kBF16, {2, 64}, 3).add_to(t, gpt + "gate_up_proj_bias");
    StoredTensor(DType::kU8, {2, 64, 1, 16}, 4).add_to(t, gpt + "down_proj_blocks");
    scales(DType::kU8, {2, 64, 1}).add_to(t, gpt + "down_proj_scales");
    StoredTensor(DType::kBF16, {2, 64}, 6).add_to(t, gpt + "down_proj_bias");
    for (const std::string w : {"w1", "w2", "w3"}) {
      const int64_t n = w == "w2" ? 64 : 32, k = w == "w2" ? 32 : 64;
      StoredTensor(DType::kI8, {n, k / 2}, ++seed).add_to(t, v4 + w + ".weight");
      scales(DType::kF8E8M0, {n, k / 32}).add_to(t, v4 + w + ".scale");
    }
    write_checkpoint(scratch / "src", {t});
    check_layouts(scratch / "src", scratch);
    fs::remove_all(scratch / "out");
    const ConvertResult result = convert(scratch / "src", scratch / "out", to("g8"));
    CHECK(findings_of(result.findings, "mxfp4-not-exact").size() == (high == 117 ? 0 : 1));
    CHECK(read_tensors(scratch / "out").count(gpt + "1.up_proj.bias") == 1);
  }
}

TEST_CASE("stacks are taken apart, in halves or interleaved, K inner or outer") {
  for (const bool interleaved : {false, true}) {
    for (const bool k_outer : {false, true}) {
      CAPTURE(interleaved);
      CAPTURE(k_outer);
      std::vector<FloatMatrix> fused, down;
      for (unsigned e = 0; e < 3; ++e) {
        fused.push_back(
            join_rows(random_floats(32, 48, e, 0.01f), random_floats(32, 48, e + 9, 0.3f), interleaved));
        down.push_back(random_floats(48, 32, e + 20));
      }
      Tensors t;
      const std::string block = kBlock;
      add_float_stack(t, block + ".gate_up_proj", fused, k_outer);
      add_float_stack(t, block + ".down_proj", down, k_outer);
      if (interleaved) {
        add_bf16(t, block + ".gate_up_proj_bias", {3, 64}, 1);
        add_bf16(t, block + ".down_proj_bias", {3, 48}, 2);
      }
      const Scratch scratch;
      write_checkpoint(scratch / "src", {t},
                       interleaved ? R"({"model_type": "gpt_oss", "hidden_size": 48})"
                                   : R"({"model_type": "qwen3_5_moe", "hidden_size": 48})");
      check_layouts(scratch / "src", scratch);
    }
  }
}

TEST_CASE("zero matrices have global scale 1 and are reported") {
  const Scratch scratch;
  Tensors t = expert_model(2, 32, 48);
  for (TensorData& tensor : t) {
    if (tensor.name.find("experts.1.") != std::string::npos)
      std::fill(tensor.bytes.begin(), tensor.bytes.end(), 0);
  }
  write_checkpoint(scratch / "src", {t});
  check_layouts(scratch / "src", scratch);
  const ConvertResult result = convert(scratch / "src", scratch / "out", to("v7"));
  CHECK(findings_of(result.findings, "zero-weights").size() == 1);
  CHECK(read_tensors(scratch / "out").at(std::string(kBlock) + ".w2_global_scale").as<float>()[1] == 1);
}

TEST_CASE("the words of the rule are those of quantize") {
  const Scratch scratch;
  write_checkpoint(scratch / "src", {expert_model(2, 32, 48)});
  for (const std::string arithmetic : {"modelopt", "compressed-tensors"}) {
    for (const std::string block_scale : {"max", "mse", "four-over-six"}) {
      for (const std::string pattern : {"", "2:4"}) {
        CAPTURE(arithmetic);
        CAPTURE(block_scale);
        CAPTURE(pattern);
        OneRule quantize = quantize_experts(), g8 = to("g8");
        for (OneRule* rule : {&quantize, &g8}) {
          rule->arithmetic = arithmetic;
          rule->block_scale = block_scale;
          rule->zero_block = "zero";
          rule->pattern = pattern;
        }
        for (const char* name : {"q", "out"}) fs::remove_all(scratch / name);
        convert(scratch / "src", scratch / "q", quantize);
        convert(scratch / "src", scratch / "out", g8);
        check_equal(shown_by(scratch / "out"), read_tensors(scratch / "q"));
        check_proven(scratch / "src", scratch / "out");
      }
    }
  }
}

TEST_CASE("planning reads no weights and leaves the scales open") {
  const Scratch scratch;
  write_checkpoint(scratch / "src", {expert_model(2, 32, 48)});
  const fs::path file = scratch / "src/model.safetensors";
  const uint64_t header = Checkpoint::open(scratch / "src").shards()[0].data_begin;
  const uint64_t size = fs::file_size(file);
  fs::resize_file(file, header);
  fs::resize_file(file, size);  // a hole
  const Checkpoint source = open_to_convert(scratch / "src", to("v7"));
  const Plan plan = make_plan(source, to("v7"));
  CHECK(source.computed_findings().empty());
  size_t scales = 0;
  for (const auto& transformation : plan.transformations) {
    for (const auto& scale : transformation->stored_scales()) {
      CHECK_FALSE(scale.bits);
      ++scales;
    }
  }
  CHECK(scales == 6);
  CHECK(plan.recipe.rules[0].arithmetic == "modelopt");
  CHECK(planned_files(source, plan).size() == 3);
}

TEST_CASE("the same bytes for any number of jobs and any pieces") {
  const Scratch scratch;
  write_checkpoint(scratch / "src", {expert_model(3, 1040, 2064)});
  for (const std::string layout : {"v7", "v7-packed", "g8"}) {
    CAPTURE(layout);
    for (const char* name : {"one", "four", "tiny"}) fs::remove_all(scratch / name);
    ConvertOptions options;
    options.jobs = 1;
    convert(scratch / "src", scratch / "one", to(layout), options);
    options.jobs = 4;
    convert(scratch / "src", scratch / "four", to(layout), options);
    CHECK((read_tree(scratch / "one") == read_tree(scratch / "four")));
    MemoryLimits limits = tiny_limits();
    limits.piece = 800 << 10;
    convert(scratch / "src", scratch / "tiny", to(layout), options, limits);
    CHECK((read_tree(scratch / "one") == read_tree(scratch / "tiny")));
  }
}

TEST_CASE("a source that has NVFP4 experts keeps its others, unless a rule names them") {
  const Scratch scratch;
  const std::string first = kBlock, second = "model.layers.1.mlp.experts";
  Tensors t, all;
  add_experts(t, first, random_experts(2, 32, 48));
  for (TensorData& tensor : expert_model(2, 32, 48)) {
    const bool is_expert = tensor.name.find("experts") != std::string::npos;
    if (is_expert) tensor.name.replace(tensor.name.find("layers.0"), 8, "layers.1");
    t.push_back(tensor);
  }
  write_checkpoint(scratch / "src", {t}, R"({"num_experts": 2})");
  const ConvertResult result = convert(scratch / "src", scratch / "out", to("v7"));
  CHECK(findings_of(result.findings, "quantized-first").empty());
  CHECK(read_tensors(scratch / "out").count(second + ".0.up_proj.weight") == 1);
  CHECK(contains(read_text(scratch / "out/config.json"), first));
  CHECK(read_text(scratch / "out/twofour.json").find("arithmetic") == std::string::npos);

  for (const bool by_role : {false, true}) {
    OneRule named = to("v7");
    if (by_role) {
      named.selection.from_default = false;
      named.selection.roles = {ModuleRole::kRoutedExperts};
    } else {
      named.selection.include = parse_patterns({"*.experts"});
    }
    fs::remove_all(scratch / "named");
    convert(scratch / "src", scratch / "named", named);
    const ReadTensors out = read_tensors(scratch / "named");
    CHECK(out.count(second + ".0.up_proj.weight") == 0);
    CHECK((out.at(first + ".w13_comp") == read_tensors(scratch / "out").at(first + ".w13_comp")));
    check_proven(scratch / "src", scratch / "named");
  }
}

TEST_CASE("NVFP4 experts beside others make one matrix; gate and up must be alike") {
  const Scratch scratch;
  const std::string block = kBlock;
  const auto model = [&](bool split) {
    Tensors t;
    const ExpertSet stored = random_experts(2, 32, 48);
    for (TensorData& tensor : expert_model(2, 32, 48)) {
      const bool is_stored = tensor.name.starts_with(block + ".1.") ||
                             (split && tensor.name.starts_with(block + ".0.gate_proj"));
      if (!is_stored) t.push_back(tensor);
    }
    add_modelopt(t, block + ".1.gate_proj", stored.gate[0]);
    add_modelopt(t, block + ".1.up_proj", stored.up[0]);
    add_modelopt(t, block + ".1.down_proj", stored.down[0]);
    if (split) add_modelopt(t, block + ".0.gate_proj", stored.gate[1]);
    return t;
  };
  write_checkpoint(scratch / "src", {model(false)});
  OneRule rule = to("g8");
  CHECK_THROWS_WITH_AS(convert(scratch / "src", scratch / "no", rule), doctest::Contains("missing"), Error);
  rule.selection.include = parse_patterns({"*.experts"});
  convert(scratch / "src", scratch / "out", rule);
  check_proven(scratch / "src", scratch / "out");
  check_equal(shown_by(scratch / "out"), [&] {
    convert(scratch / "src", scratch / "q", quantize_experts("re:.*experts\\.0\\..*"));
    return read_tensors(scratch / "q");
  }());
  write_checkpoint(scratch / "split", {model(true)});
  CHECK_THROWS_WITH_AS(
      convert(scratch / "split", scratch / "no", rule),
      doctest::Contains("up_proj: expected NVFP4 like model.layers.0.mlp.experts.0.gate_proj"), Error);
}

TEST_CASE("what stays quantized beside the experts has the dialect of the quantized checkpoint") {
  const Scratch scratch;
  Tensors t = expert_model(2, 32, 144);
  const std::string o = "model.layers.0.self_attn.o_proj";
  fp8_weights({144, 272}, 3).add_to(t, o + ".weight");
  random_scales(DType::kF32, {2, 3}, 4).add_to(t, o + ".weight_scale_inv");
  const std::string down = "model.layers.0.mlp.shared_expert.down_proj";
  add_compressed_tensors(t, down, random_matrix(16, 32, 5));
  write_checkpoint(scratch / "src", {t});
  check_layouts(scratch / "src", scratch);
  convert(scratch / "src", scratch / "out", to("v7"));
  CHECK(read_tensors(scratch / "out").count(down + ".weight_scale_2") == 1);
  CHECK(contains(read_text(scratch / "out/config.json"), "MIXED_PRECISION"));
}

TEST_CASE("what cannot be quantized is refused and leaves nothing") {
  const Scratch scratch;
  const auto refusal = [&](Tensors t, const std::string& layout = "v7") {
    fs::remove_all(scratch / "src");
    write_checkpoint(scratch / "src", {std::move(t)});
    const std::string message = message_of([&] { convert(scratch / "src", scratch / "out", to(layout)); });
    CHECK_FALSE(fs::exists(scratch / "out"));
    return message;
  };
  Tensors odd = expert_model(1, 24, 48);
  CHECK(contains(refusal(odd),
                 "experts.0.down_proj.weight: expected K a multiple of 16 to quantize, found 24"));
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    Tensors t = expert_model(3, 32, 48, DType::kF32);
    for (TensorData& tensor : t) {
      if (!tensor.name.ends_with("experts.1.up_proj.weight")) continue;
      std::memcpy(tensor.bytes.data() + 4 * (48 * 5 + 3), &bad, sizeof(bad));
    }
    CHECK(contains(refusal(t), "experts.1.up_proj.weight: expected finite weights, found"));
    CHECK(contains(refusal(t, "g8"), "row 5, k 3"));
  }
  Tensors taken = expert_model(1, 32, 48);
  add_bf16(taken, std::string(kBlock) + ".0.up_proj.weight_scale_2", {4});
  CHECK(contains(refusal(taken), "weight_scale_2"));
}

TEST_CASE("one flipped bit is found in whatever tensor") {
  const Scratch scratch;
  write_checkpoint(scratch / "src", {expert_model(2, 32, 48)});
  for (const std::string layout : {"v7", "g8"}) {
    fs::remove_all(scratch / "out");
    convert(scratch / "src", scratch / "out", to(layout));
    const fs::path file = scratch / "out/model-00001-of-00001.safetensors";
    const Checkpoint c = Checkpoint::open(scratch / "out");
    for (const TensorInfo& t : c.tensors()) {
      CAPTURE(t.name);
      const uint64_t at = c.shards()[0].data_begin + t.begin + (t.bytes() * 2 / 3);
      flip_bit(file, at, 3);
      const ValidateReport report = validate_from(scratch / "src", scratch / "out", 0);
      const bool derived = std::any_of(report.differences.begin(), report.differences.end(),
                                       [](const Finding& f) { return f.id != "hash"; });
      CHECK(derived);
      flip_bit(file, at, 3);
    }
    check_proven(scratch / "src", scratch / "out");
    // A source that changed is no proof.
    fs::copy(scratch / "src", scratch / "other");
    flip_bit(scratch / "other/model.safetensors", fs::file_size(scratch / "other/model.safetensors") - 1, 0);
    CHECK_FALSE(validate_from(scratch / "other", scratch / "out", 0).differences.empty());
    fs::remove_all(scratch / "other");
  }
}

TEST_CASE("a run that goes on ends with the same bytes; complete, it is verified") {
  const Scratch scratch;
  write_checkpoint(scratch / "src", {expert_model(4, 32, 48)});
  OneRule recipe = to("v7");
  recipe.max_shard_size = 1500;
  convert(scratch / "src", scratch / "whole", recipe);
  const auto expected = read_tree(scratch / "whole");
  const Checkpoint source = open_to_convert(scratch / "src", recipe);
  const Plan plan = make_plan(source, recipe);
  REQUIRE(plan.files.size() > 4);
  ConvertOptions resume;
  resume.existing = Existing::kResume;
  for (size_t left = 0; left < plan.files.size(); ++left) {
    CAPTURE(left);
    {
      OutputDirectory directory(scratch / "out", scratch / "src", Existing::kRefuse);
      Progress progress;
      REQUIRE(begin_or_resume(directory, source, plan, nullptr, progress).empty());
      std::vector<bool> wanted(plan.files.size(), true);
      wanted[left] = false;
      Conversion conversion(source, plan, {}, scratch / "out", progress, wanted,
                            [&](ShardRecord&& r) { directory.note(format_shard_record(plan, r)); });
      conversion.run();
      directory.keep();
    }
    const ConvertResult result = convert(scratch / "src", scratch / "out", recipe, resume);
    CHECK(result.files_kept == plan.files.size() - 1);
    CHECK((read_tree(scratch / "out") == expected));
    CHECK(convert(scratch / "src", scratch / "out", recipe, resume).was_complete);
    fs::remove_all(scratch / "out");
  }
}

}  // namespace quantized_layout_test
