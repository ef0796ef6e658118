#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <tuple>

#include "formats/e2m1.h"
#include "formats/e4m3.h"
#include "formats/error.h"
#include "formats/half.h"
#include "lib/base/io/file.h"
#include "lib/base/threads/progress.h"
#include "lib/lint/lint.h"
#include "lib/look/inspect/inspect.h"
#include "tests/support/conversion.h"
#include "tests/support/message.h"
#include "tests/support/one_rule.h"
#include "tests/support/scratch.h"
#include "tests/support/weights/float_weights.h"
#include "tests/support/weights/stored_weights.h"

namespace families_test {

using namespace twofour;

namespace {

/// How the files of a family hold the experts of a layer.
struct Family {
  std::string model_type;
  std::string gate_up, down;        ///< tensors
  std::string experts;              ///< path of single experts
  std::vector<std::string> leaves;  ///< gate, up, down
  bool columns_first, in_turn, bias;
};

const std::string kLayer = "model.layers.0.";

std::vector<Family> families() {
  const std::vector<std::string> usual{"gate_proj", "up_proj", "down_proj"}, mixtral{"w1", "w3", "w2"};
  return {{"gpt_oss", "mlp.experts.gate_up_proj", "mlp.experts.down_proj", "mlp.experts", usual, true, true,
           true},
          {"llama4_text", "feed_forward.experts.gate_up_proj", "feed_forward.experts.down_proj",
           "feed_forward.experts", usual, true, false, false},
          {"qwen3_vl_moe_text", "mlp.experts.gate_up_proj", "mlp.experts.down_proj", "mlp.experts", usual,
           true, false, false},
          {"gemma4_text", "experts.gate_up_proj", "experts.down_proj", "experts", usual, false, false, false},
          {"granitemoe", "block_sparse_moe.input_linear.weight", "block_sparse_moe.output_linear.weight",
           "block_sparse_moe.experts", mixtral, false, false, false}};
}

std::string config_of(const Family& f, int64_t e) {
  return fmt::format(R"({{"model_type": "{}", "num_local_experts": {}, "num_experts_per_tok": 2}})",
                     f.model_type, e);
}

TensorData bias_of(const std::string& name, int64_t e, int64_t n, unsigned seed) {
  return {name, DType::kBF16, {e, n}, float_bytes_as(DType::kBF16, random_floats(e, n, seed).values)};
}

/// A layer as the family's files have it, with an MLP's and attention's linears beside it.
Tensors layer_of(const Family& f, int64_t e, int64_t i, int64_t h) {
  Tensors t;
  std::vector<FloatMatrix> gate_up, down;
  for (int64_t x = 0; x < e; ++x) {
    const auto seed = static_cast<unsigned>(100 * x + 1);
    const float spread = 0.02f * (1 + 0.1f * static_cast<float>(x));  // no two experts have one maximum
    gate_up.push_back(join_rows(random_floats(i, h, seed, spread),
                                random_floats(i, h, seed + 1, 1.5f * spread), f.in_turn));
    down.push_back(random_floats(h, i, seed + 2, spread));
  }
  add_float_stack(t, kLayer + f.gate_up, gate_up, f.columns_first);
  add_float_stack(t, kLayer + f.down, down, f.columns_first);
  if (f.bias) {
    t.push_back(bias_of(kLayer + f.gate_up + "_bias", e, 2 * i, 5));
    t.push_back(bias_of(kLayer + f.down + "_bias", e, h, 6));
  }
  add_floats(t, kLayer + "self_attn.q_proj", random_floats(32, h, 7));
  t.push_back({kLayer + "input_layernorm.weight",
               DType::kBF16,
               {h},
               float_bytes_as(DType::kBF16, random_floats(1, h, 8, 0.5f).values)});
  return t;
}

OneRule rule_to(const std::string& to, const std::string& dialect = {}) {
  OneRule rule;
  rule.to = to;
  rule.dialect = dialect;
  return rule;
}

/// Weights [n, k] of a module in ModelOpt's dialect, in BF16.
std::vector<uint16_t> widened(const ReadTensors& t, const std::string& module) {
  const ReadTensor &codes = t.at(module + ".weight"), &scales = t.at(module + ".weight_scale");
  const float global = t.at(module + ".weight_scale_2").as<float>()[0];
  std::vector<uint16_t> out;
  for (size_t i = 0; i < 2 * codes.bytes.size(); ++i) {
    const float scale = e4m3_to_float(scales.bytes[i / 16]);
    out.push_back(bf16_from_float(e2m1_to_float(codes.bytes[i / 2] >> 4 * (i % 2) & 15u) * scale * global));
  }
  return out;
}

/// The expected elements of a stack, from single experts that `matrix(e, leaf)` gives as [n, k].
template <class F>
std::vector<uint16_t> stacked(const Family& f, bool gated, int64_t e, int64_t n, int64_t k, F&& matrix) {
  std::vector<uint16_t> out(static_cast<size_t>(e * n * k));
  for (int64_t x = 0; x < e; ++x) {
    const auto gate = gated ? matrix(x, f.leaves[0]) : matrix(x, f.leaves[2]);
    const auto up = gated ? matrix(x, f.leaves[1]) : gate;
    for (int64_t row = 0; row < n; ++row) {
      const int64_t half = n / 2;
      const bool from_up = gated && (f.in_turn ? row % 2 == 1 : row >= half);
      const int64_t own = !gated ? row : f.in_turn ? row / 2 : row % half;
      for (int64_t c = 0; c < k; ++c) {
        const int64_t at = f.columns_first ? (x * k + c) * n + row : (x * n + row) * k + c;
        out[static_cast<size_t>(at)] = (from_up ? up : gate)[static_cast<size_t>(own * k + c)];
      }
    }
  }
  return out;
}

void check_bytes(const std::filesystem::path& source, const std::filesystem::path& made) {
  const ValidateReport report = validate_from(source, made);
  CHECK_MESSAGE(report.differences.empty(), text_of(report.differences));
}

/// The bytes and, by other code, every value.
void check_sound(const std::filesystem::path& source, const std::filesystem::path& made) {
  const ValidateReport report = validate_from(source, made);
  CHECK_MESSAGE(report.differences.empty(), text_of(report.differences));
  CHECK(findings_of(report.notes, "not-compared").empty());
}

}  // namespace

TEST_CASE(
    "stacks of each family are quantized expert by expert, and written back as the family stores them") {
  for (const Family& f : families()) {
    CAPTURE(f.model_type);
    const Scratch scratch;
    const int64_t e = 3, i = 48, h = 80;
    write_checkpoint(scratch / "src", {layer_of(f, e, i, h)}, config_of(f, e));
    const ReadTensors before = read_tensors(scratch / "src");
    convert(scratch / "src", scratch / "q", rule_to("quantize", "modelopt"));
    check_sound(scratch / "src", scratch / "q");
    const ReadTensors q = read_tensors(scratch / "q");
    for (int64_t x = 0; x < e; ++x) {
      for (const std::string& leaf : f.leaves)
        CHECK(q.count(fmt::format("{}{}.{}.{}.weight", kLayer, f.experts, x, leaf)) == 1);
    }

    const ConvertResult result = convert(scratch / "q", scratch / "bf16", rule_to("bf16"));
    CHECK(result.modules.size() == 3);
    check_sound(scratch / "q", scratch / "bf16");
    CHECK(validate(scratch / "bf16").differences.empty());
    const ReadTensors after = read_tensors(scratch / "bf16");
    std::vector<std::string> names_before, names_after;
    for (const auto& [name, t] : before) names_before.push_back(name + describe(t.dtype, t.shape));
    for (const auto& [name, t] : after) names_after.push_back(name + describe(t.dtype, t.shape));
    CHECK(names_before == names_after);
    const auto matrix = [&](int64_t x, const std::string& leaf) {
      return widened(q, fmt::format("{}{}.{}.{}", kLayer, f.experts, x, leaf));
    };
    CHECK((after.at(kLayer + f.gate_up).as<uint16_t>() == stacked(f, true, e, 2 * i, h, matrix)));
    CHECK((after.at(kLayer + f.down).as<uint16_t>() == stacked(f, false, e, h, i, matrix)));
    if (f.bias) {
      CHECK(after.at(kLayer + f.gate_up + "_bias") == before.at(kLayer + f.gate_up + "_bias"));
      CHECK(after.at(kLayer + f.down + "_bias") == before.at(kLayer + f.down + "_bias"));
    }
    CHECK(!parse_json("config", read_text(scratch / "bf16/config.json")).contains("quantization_config"));

    // Byte for byte for any number of jobs, and what was quantized once is so again.
    ConvertOptions options;
    options.jobs = 3;
    convert(scratch / "q", scratch / "jobs", rule_to("bf16"), options);
    CHECK((read_tree(scratch / "jobs") == read_tree(scratch / "bf16")));
    convert(scratch / "bf16", scratch / "again", rule_to("quantize", "modelopt"));
    check_sound(scratch / "bf16", scratch / "again");
  }
}

TEST_CASE("quantized stacks of each family go through every layout, lint and inspect") {
  for (const Family& f : families()) {
    CAPTURE(f.model_type);
    const Scratch scratch;
    write_checkpoint(scratch / "src", {layer_of(f, 4, 64, 96)}, config_of(f, 4));
    for (const std::string dialect : {"modelopt", "compressed-tensors"}) {
      CAPTURE(dialect);
      const auto q = scratch / dialect;
      convert(scratch / "src", q, rule_to("quantize", dialect));
      Progress progress;
      const LintReport lint = twofour::lint(q, {}, progress);
      for (const LintFinding& finding : lint.findings) {
        CAPTURE(finding.rule);
        CAPTURE(finding.message);
        CHECK(finding.severity == Severity::kNote);
      }
      const InspectReport seen = inspect(Checkpoint::open(q), {}, false, 1);
      CHECK(seen.default_set_bytes > 0);
      CHECK(findings_of(seen.findings, "no-default-set").empty());
      for (const std::string layout : {"v7", "v7-packed", "g8"}) {
        CAPTURE(layout);
        const auto out = scratch / (dialect + layout);
        const ConvertResult made = convert(q, out, rule_to(layout));
        CHECK(made.modules.size() == 2);
        CHECK(made.modules[1].name == kLayer + f.experts + ".w13");
        CHECK(findings_of(made.findings, "experts-left").empty());
        const ValidateReport report = validate_from(q, out);
        CHECK_MESSAGE(report.differences.empty(), text_of(report.differences));
      }
    }
  }
}

TEST_CASE("large stacks are written in columns and rows that fit the memory, the same for any limit") {
  for (const Family& f : families()) {
    if (f.model_type != "gpt_oss" && f.model_type != "gemma4_text") continue;
    CAPTURE(f.model_type);
    const Scratch scratch;
    const int64_t e = 2, i = 1040, h = 2064;  // gate and up are 4.3 million weights: two units of rows
    write_checkpoint(scratch / "src", {layer_of(f, e, i, h)}, config_of(f, e));
    convert(scratch / "src", scratch / "q", rule_to("quantize", "modelopt"));
    convert(scratch / "q", scratch / "bf16", rule_to("bf16"));
    MemoryLimits limits;
    limits.piece = 1u << 20;  // 252 columns of gate and up at a time
    convert(scratch / "q", scratch / "small", rule_to("bf16"), {}, limits);
    CHECK((read_tree(scratch / "small") == read_tree(scratch / "bf16")));
    check_sound(scratch / "q", scratch / "bf16");
    const ReadTensors q = read_tensors(scratch / "q"), after = read_tensors(scratch / "bf16");
    const auto matrix = [&](int64_t x, const std::string& leaf) {
      return widened(q, fmt::format("{}{}.{}.{}", kLayer, f.experts, x, leaf));
    };
    CHECK((after.at(kLayer + f.gate_up).as<uint16_t>() == stacked(f, true, e, 2 * i, h, matrix)));
  }
}

TEST_CASE("gpt-oss's MXFP4 stacks become the turned stacks that it has in floats, FP8 experts stacks, too") {
  const Scratch scratch;
  const int64_t e = 3, i = 32, h = 64;
  Tensors t;
  const auto add = [&](const std::string& name, int64_t n, int64_t k, unsigned seed) {
    StoredTensor(DType::kU8, {e, n, k / 32, 16}, seed).add_to(t, name + "_blocks");
    StoredTensor scales(DType::kU8, {e, n, k / 32}, seed + 1, 20);
    for (uint8_t& byte : scales.bytes) byte = static_cast<uint8_t>(byte + 115);
    scales.add_to(t, name + "_scales");
    t.push_back(bias_of(name + "_bias", e, n, seed + 2));
  };
  const std::string block = kLayer + "mlp.experts.";
  add(block + "gate_up_proj", 2 * i, h, 1);
  add(block + "down_proj", h, i, 5);
  write_checkpoint(scratch / "src", {t},
                   R"({"model_type": "gpt_oss", "quantization_config": {"quant_method": "mxfp4"}})");
  convert(scratch / "src", scratch / "bf16", rule_to("bf16"));
  check_sound(scratch / "src", scratch / "bf16");
  const ReadTensors before = read_tensors(scratch / "src"), after = read_tensors(scratch / "bf16");
  CHECK(after.size() == 4);
  for (const auto& [name, n, k] :
       {std::tuple{block + "gate_up_proj", 2 * i, h}, {block + "down_proj", h, i}}) {
    CAPTURE(name);
    const ReadTensor& stack = after.at(name);
    CHECK(stack.shape == std::vector{e, k, n});
    CHECK(after.at(name + "_bias") == before.at(name + "_bias"));
    const auto values = stack.as<uint16_t>();
    const auto &codes = before.at(name + "_blocks").bytes, &scales = before.at(name + "_scales").bytes;
    for (int64_t x = 0; x < e * n * k; ++x) {
      const int64_t expert = x / (n * k), row = x / k % n, c = x % k;
      const unsigned code = codes[static_cast<size_t>(x / 2)] >> 4 * (x % 2) & 15u;
      const float value = std::ldexp(e2m1_to_float(code), scales[static_cast<size_t>(x / 32)] - 127);
      REQUIRE(values[static_cast<size_t>((expert * k + c) * n + row)] == bf16_from_float(value));
    }
  }
}

TEST_CASE("experts in FP8 become stacks in BF16, those in BF16 beside them, too") {
  const Scratch scratch;
  const int64_t e = 2, i = 48, h = 80;
  const Family f = families()[4];
  Tensors t;
  for (int64_t x = 0; x < e; ++x) {
    for (size_t leaf = 0; leaf < 3; ++leaf) {
      const std::string name = fmt::format("{}{}.{}.{}", kLayer, f.experts, x, f.leaves[leaf]);
      const int64_t n = leaf == 2 ? h : i, k = leaf == 2 ? i : h;
      const auto seed = static_cast<unsigned>(10 * x) + static_cast<unsigned>(leaf);
      if (x == 1 && leaf == 0) {
        add_floats(t, name, random_floats(n, k, seed));
        continue;
      }
      fp8_weights({n, k}, seed).add_to(t, name + ".weight");
      random_scales(DType::kF32, {n, 1}, seed).add_to(t, name + ".weight_scale");
    }
  }
  write_checkpoint(scratch / "src", {t}, config_of(f, e));
  convert(scratch / "src", scratch / "bf16", rule_to("bf16"));
  check_sound(scratch / "src", scratch / "bf16");
  const ReadTensors before = read_tensors(scratch / "src"), after = read_tensors(scratch / "bf16");
  CHECK(after.size() == 2);
  const auto matrix = [&](int64_t x, const std::string& leaf) {
    const std::string name = fmt::format("{}{}.{}.{}", kLayer, f.experts, x, leaf);
    const ReadTensor& weight = before.at(name + ".weight");
    if (weight.dtype == DType::kBF16) return weight.as<uint16_t>();
    const auto scales = before.at(name + ".weight_scale").as<float>();
    std::vector<uint16_t> out;
    for (size_t w = 0; w < weight.bytes.size(); ++w) {
      const float scale = scales[w / static_cast<size_t>(weight.shape[1])];
      out.push_back(bf16_from_float(e4m3_to_float(weight.bytes[w]) * scale));
    }
    return out;
  };
  CHECK((after.at(kLayer + f.gate_up).as<uint16_t>() == stacked(f, true, e, 2 * i, h, matrix)));
  CHECK((after.at(kLayer + f.down).as<uint16_t>() == stacked(f, false, e, h, i, matrix)));
}

TEST_CASE("one flipped bit of a stack or its bias is found") {
  const Family f = families()[0];
  const Scratch scratch;
  write_checkpoint(scratch / "src", {layer_of(f, 2, 32, 48)}, config_of(f, 2));
  convert(scratch / "src", scratch / "q", rule_to("quantize", "modelopt"));
  convert(scratch / "q", scratch / "bf16", rule_to("bf16"));
  const Checkpoint c = Checkpoint::open(scratch / "bf16");
  for (size_t t = 0; t < c.tensors().size(); ++t) {
    const uint64_t at = c.shard_of(t).data_begin + c.tensors()[t].begin + 7;
    flip_bit(c.shard_of(t).file.path(), at, 1);
    const auto found = findings_of(validate_from(scratch / "q", scratch / "bf16").differences, "bytes");
    REQUIRE(found.size() == 1);
    CHECK(found[0].where == c.tensors()[t].name);
    flip_bit(c.shard_of(t).file.path(), at, 1);
  }
}

TEST_CASE("experts that are not all widened stay apart, with a warning; a lost bias is refused") {
  const Family f = families()[0];
  const Scratch scratch;
  write_checkpoint(scratch / "src", {layer_of(f, 2, 32, 48)}, config_of(f, 2));
  convert(scratch / "src", scratch / "q", rule_to("quantize", "modelopt"));
  OneRule some = rule_to("bf16");
  some.selection.include = parse_patterns({"*.experts.0.*"});
  CHECK_THROWS_WITH_AS(make_plan(Checkpoint::open(scratch / "q"), some),
                       doctest::Contains("because loaders give the experts of a layer one format"), Error);
  // Without a configuration, engines are not asked.
  Json config = parse_json("config", read_text(scratch / "q/config.json"));
  config.erase("quantization_config");
  write_text(scratch / "q/config.json", config.dump());
  std::filesystem::remove(scratch / "q/hf_quant_config.json");
  std::filesystem::remove(scratch / "q/twofour.json");
  const Plan plan = make_plan(Checkpoint::open(scratch / "q"), some);
  const auto found = findings_of(plan.findings, "experts-not-stacked");
  REQUIRE(found.size() == 1);
  CHECK(found[0].severity == Severity::kWarning);
  CHECK(found[0].where == "model.layers.0.mlp.experts");
  CHECK(found[0].message ==
        "expected all its experts to become one stack (as in files of gpt_oss), found "
        "model.layers.0.mlp.experts.1.gate_proj that stays as it is: its loaders do not support single "
        "experts");

  Tensors left;
  for (auto& [name, t] : read_tensors(scratch / "q")) {
    if (name != "model.layers.0.mlp.experts.1.up_proj.bias")
      left.push_back({name, t.dtype, t.shape, t.bytes});
  }
  write_checkpoint(scratch / "lost", {left}, config_of(f, 2));
  CHECK(message_of([&] { make_plan(Checkpoint::open(scratch / "lost"), rule_to("bf16")); }) ==
        "model.safetensors: model.layers.0.mlp.experts.1.up_proj.weight: expected a bias beside it (as in "
        "experts of gpt_oss), found none");
}

TEST_CASE("blocks of FP8 that loaders refuse are refused, kept or written as asked") {
  const Scratch scratch;
  Tensors t;
  add_floats(t, "model.layers.0.mlp.gate_proj", random_floats(128, 256, 1));
  add_floats(t, "model.layers.0.mlp.up_proj", random_floats(128, 256, 2));
  add_floats(t, "model.layers.0.mlp.down_proj", random_floats(256, 128, 3));
  add_floats(t, "model.layers.0.self_attn.q_proj", random_floats(128, 256, 4));
  add_floats(t, "model.layers.0.self_attn.k_proj", random_floats(64, 256, 5));
  write_checkpoint(scratch / "src", {t});
  OneRule rule = rule_to("fp8");
  rule.granularity = "block";
  const auto plan = [&] { return make_plan(Checkpoint::open(scratch / "src"), rule); };
  for (const std::string dialect : {"compressed-tensors", "modelopt", "deepseek"}) {
    CAPTURE(dialect);
    rule.dialect = dialect;
    rule.odd_blocks = "";
    const std::string message = message_of(plan);
    CHECK(message.find(
              "model.safetensors: model.layers.0.self_attn.k_proj.weight: expected N a multiple of 128 and "
              "K of 128 for blocks in the " +
              dialect + " dialect") == 0);
    CHECK(message.find(", found [64, 256]; --odd-blocks keep leaves such linears unchanged") != message.npos);

    rule.odd_blocks = "keep";
    convert(scratch / "src", scratch / (dialect + "kept"), rule);
    check_bytes(scratch / "src", scratch / (dialect + "kept"));
    const ReadTensors kept = read_tensors(scratch / (dialect + "kept"));
    // Modules that engines fuse stay together.
    for (const char* own : {"q_proj", "k_proj"})
      CHECK(kept.at(std::string("model.layers.0.self_attn.") + own + ".weight").dtype == DType::kBF16);
    CHECK(kept.at("model.layers.0.mlp.down_proj.weight").dtype == DType::kF8E4M3);
    const std::string config = read_text(scratch / (dialect + "kept") / "config.json");
    CHECK(config.find("model.layers.0.self_attn.k_proj") != config.npos);
    CHECK(findings_of(plan().findings, "odd-blocks").size() == 1);

    rule.odd_blocks = "write";
    convert(scratch / "src", scratch / (dialect + "written"), rule);
    check_bytes(scratch / "src", scratch / (dialect + "written"));
    CHECK(read_tensors(scratch / (dialect + "written")).at("model.layers.0.self_attn.k_proj.weight").dtype ==
          DType::kF8E4M3);
  }
}

TEST_CASE("routed experts in ModelOpt's FP8 have one scale a matrix, or are refused") {
  const Scratch scratch;
  Tensors t;
  for (const int e : {0, 1}) {
    for (const char* leaf : {"gate_proj", "up_proj", "down_proj"})
      add_floats(t, fmt::format("model.layers.0.mlp.experts.{}.{}", e, leaf), random_floats(128, 128, 1));
  }
  write_checkpoint(scratch / "src", {t});
  OneRule rule = rule_to("fp8", "modelopt");
  for (const std::string granularity : {"row", "block", "tensor"}) {
    rule.granularity = granularity;
    const std::string message = message_of([&] { make_plan(Checkpoint::open(scratch / "src"), rule); });
    CHECK(message ==
          (granularity == "tensor"
               ? ""
               : "model.safetensors: model.layers.0.mlp.experts.0.down_proj.weight: expected --granularity "
                 "tensor for routed experts in the modelopt dialect, because its FP8 experts have one scale "
                 "a matrix in every engine that reads it (vLLM 0.33), found " +
                     granularity + " (and 5 more); --dialect compressed-tensors has rows and blocks"));
    rule.dialect = "compressed-tensors";
    make_plan(Checkpoint::open(scratch / "src"), rule);
    rule.dialect = "modelopt";
  }
}

TEST_CASE("experts that a layout leaves over are a warning, whatever they are stored as") {
  for (const std::string left :
       {"model.layers.0.mlp.experts.gate_up_proj", "model.layers.0.odd_experts.weight"}) {
    CAPTURE(left);
    const Scratch scratch;
    Tensors t;
    for (const char* leaf : {"gate_proj", "up_proj", "down_proj"})
      add_modelopt(t, std::string("model.layers.0.mlp.") + leaf, random_matrix(32, 32, 1));
    add_bf16(t, left, {2, 64, 32});
    write_checkpoint(scratch / "src", {t});
    for (const std::string layout : {"v7", "g8"}) {
      const auto found =
          findings_of(make_plan(Checkpoint::open(scratch / "src"), rule_to(layout)).findings, "experts-left");
      REQUIRE(found.size() == 1);
      CHECK(found[0].severity == Severity::kWarning);
      CHECK(found[0].message == "routed experts that stay as they are while others are converted: 1 block");
    }
  }
}

TEST_CASE("ModelOpt's W4A8_NVFP4_FP8 is read, and torchao's codes are named") {
  const Scratch scratch;
  Tensors t;
  Nvfp4Matrix m = random_matrix(16, 64, 1);
  add_modelopt(t, "model.layers.0.mlp.down_proj", m);
  for (TensorData& tensor : t) {
    if (!tensor.name.ends_with(".weight_scale")) continue;
    tensor.shape[1] /= 2;
    tensor.bytes.resize(tensor.bytes.size() / 2);
  }
  const auto config = [](const char* algorithm, int size) {
    return Json{{"quantization_config",
                 {{"quant_method", "modelopt"}, {"quant_algo", algorithm}, {"group_size", size}}}}
        .dump();
  };
  write_checkpoint(scratch / "w4a8", {t}, config("W4A8_NVFP4_FP8", 32));
  const Checkpoint w4a8 = Checkpoint::open(scratch / "w4a8");
  CHECK(make_plan(w4a8, rule_to("bf16")).files.size() == 1);
  write_checkpoint(scratch / "of16", {t}, config("NVFP4", 16));
  const Checkpoint of16 = Checkpoint::open(scratch / "of16");
  CHECK(message_of([&] { make_plan(of16, rule_to("bf16")); }) ==
        "model.safetensors: model.layers.0.mlp.down_proj.weight_scale: expected block scales for 16 weights "
        "(the config), found F8_E4M3 [16, 2]");

  Tensors torchao;
  const std::string module = "model.layers.0.mlp.down_proj";
  torchao.push_back({module + "._weight_qdata", DType::kU8, {16, 32}, std::vector<uint8_t>(512)});
  torchao.push_back({module + "._weight_scale", DType::kF8E4M3, {16, 4}, std::vector<uint8_t>(64)});
  torchao.push_back({module + "._weight_per_tensor_scale", DType::kF32, {}, {0, 0, 0x80, 0x3F}});
  write_checkpoint(scratch / "torchao", {torchao});
  const Checkpoint c = Checkpoint::open(scratch / "torchao");
  const InspectReport seen = inspect(c, {}, false, 1);
  CHECK(seen.what == "checkpoint of torchao's NVFP4Tensor, whose codes twofour does not read");
  REQUIRE(findings_of(seen.findings, "unread-codes").size() == 1);
  for (const std::string to : {"v7", "bf16", "nvfp4", "fp8", "quantize"}) {
    CHECK(message_of([&] { make_plan(c, rule_to(to)); }) ==
          "model.safetensors: model.layers.0.mlp.down_proj._weight_qdata: expected a format that twofour "
          "reads, found "
          "torchao's NVFP4Tensor, which is not supported (1 module in all)");
  }
  for (const char* source : {"w4a8", "torchao"}) {
    Progress progress;
    const LintReport lint = twofour::lint(scratch / source, {}, progress);
    CHECK(std::count_if(lint.findings.begin(), lint.findings.end(), [](const LintFinding& f) {
            return f.severity == Severity::kWarning && f.message.ends_with("which is not supported");
          }) == (source == std::string_view("torchao")));
    CHECK(std::none_of(lint.findings.begin(), lint.findings.end(), [](const LintFinding& f) {
      return f.severity == Severity::kError && f.name.starts_with("model.layers.0.mlp.down_proj");
    }));
  }
}

TEST_CASE("phimoe's router is listed as the files and as transformers name it") {
  const Scratch scratch;
  Tensors t;
  for (const char* leaf : {"w1", "w3", "w2"})
    add_floats(t, fmt::format("model.layers.0.block_sparse_moe.experts.0.{}", leaf),
               random_floats(32, 32, 1));
  add_floats(t, "model.layers.0.block_sparse_moe.gate", random_floats(2, 32, 1));
  write_checkpoint(scratch / "src", {t}, R"({"model_type": "phimoe"})");
  convert(scratch / "src", scratch / "out", rule_to("quantize", "compressed-tensors"));
  const Json config = parse_json("config", read_text(scratch / "out/config.json"));
  CHECK(config["quantization_config"]["ignore"] ==
        Json::array({"model.layers.0.block_sparse_moe.gate", "model.layers.0.mlp.router"}));
}

}  // namespace families_test
