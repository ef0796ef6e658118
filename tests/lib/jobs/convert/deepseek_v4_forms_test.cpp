#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <string>

#include "formats/json.h"
#include "lib/base/io/file.h"
#include "lib/jobs/convert/convert.h"
#include "lib/lint/lint.h"
#include "lib/recipe/artifact/recipe_file.h"
#include "lib/synth/synth.h"
#include "lib/write/plan/plan.h"
#include "lib/write/transform/open_to_convert.h"
#include "tests/support/checkpoint_builder.h"
#include "tests/support/conversion.h"
#include "tests/support/diff_of.h"
#include "tests/support/message.h"
#include "tests/support/scratch.h"

/// DeepSeek-V4's own form: what its config and scales are, by what its experts become. Sources: vLLM 0.33,
/// models/deepseek_v4/quant_config.py; NVIDIA/Model-Optimizer, deepseek_v4/quantize_to_nvfp4.py.

namespace deepseek_v4_forms_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;

/// The model's checkpoint as `dialect` publishes it.
void make_source(const fs::path& path, const std::string& dialect) {
  SynthOptions options;
  options.shape = "deepseek-v4";
  options.dialect = dialect;
  options.small = true;
  options.vocab = 64;
  Progress progress;
  synth(path, options, progress);
}

std::string linted(const fs::path& path) {
  Progress progress;
  std::string text;
  for (const LintFinding& f : lint(path, {}, progress).findings) {
    if (f.severity != Severity::kNote)
      text += fmt::format("{}: {}: {}\n", lint_rules()[f.rule].id, f.where(), f.message);
  }
  return text;
}

/// The result of a recipe from a sound source.
struct Made {
  Made(const fs::path& source, const fs::path& out, const std::string& rules, bool is_sound = true) {
    const Recipe recipe = read_recipe("r", "format: 1\nrules: [" + rules + "]\n");
    const Checkpoint checkpoint = open_to_convert(source, recipe, Io::kCached, {});
    const Plan plan = make_plan(checkpoint, recipe, {});
    Progress progress;
    findings = convert(checkpoint, plan, out, {}, progress).findings;
    CHECK(text_of(validate_from(source, out).differences) == "");
    config = parse_json("config.json", read_text(out / "config.json"));
    if (fs::exists(out / "hf_quant_config.json"))
      hf_quant = parse_json("hf_quant_config.json", read_text(out / "hf_quant_config.json"))["quantization"];
    tensors = read_tensors(out);
    if (is_sound) {
      CHECK(linted(out) == "");
    } else {
      CHECK(contains(linted(out), "config-format: config.json: quantization_config.scale_fmt"));
    }
  }
  /// Types of the scales of FP8 and MXFP4 beside `part` in names: "F32", or "F32 F8_E8M0".
  std::string scales(const std::string& part, const std::string& prefix) const {
    std::set<std::string> types;
    for (const auto& [name, t] : tensors) {
      if (name.ends_with(".scale") && name.starts_with(prefix) && name.find(part) != name.npos)
        types.emplace(dtype_name(t.dtype));
    }
    std::string text;
    for (const std::string& type : types) text += (text.empty() ? "" : " ") + type;
    return text;
  }
  const Json& entry() const { return config.at("quantization_config"); }

  Findings findings;
  Json config, hf_quant = nullptr;
  ReadTensors tensors;
};

constexpr const char* kExperts = "ffn.experts.";
constexpr const char* kAttention = "attn.w";

}  // namespace

TEST_CASE("experts in FP8 make expert_dtype fp8 and F32 scales throughout, with the same values") {
  const Scratch scratch;
  make_source(scratch / "src", "released");
  const Made made(scratch / "src", scratch / "out",
                  "{match: experts, to: fp8, granularity: block, draft_experts: cast}");
  CHECK(made.config.at("expert_dtype") == "fp8");
  CHECK(made.entry().at("quant_method") == "fp8");
  CHECK(made.entry().at("weight_block_size") == Json::array({128, 128}));
  CHECK(!made.entry().contains("scale_fmt"));
  CHECK(!made.entry().contains("moe_quant_algo"));
  for (const char* prefix : {"layers.", "mtp."}) {
    CHECK(made.scales(kExperts, prefix) == "F32");
    CHECK(made.scales(kAttention, prefix) == "F32");
  }
  CHECK(made.findings.end() == std::find_if(made.findings.begin(), made.findings.end(),
                                            [](auto& f) { return f.severity == Severity::kWarning; }));
  // Powers of two are F32 numbers, and the casts are exact.
  const DiffResult same = diff_of(scratch / "src", scratch / "out");
  CHECK(same.count(DiffClass::kEqual) == same.entries.size());
}

TEST_CASE("experts in FP8 get E8M0 scales where these are asked for, with a warning") {
  const Scratch scratch;
  make_source(scratch / "src", "released");
  const Made made(scratch / "src", scratch / "out",
                  "{match: experts, to: fp8, scale_dtype: e8m0, draft_experts: cast}");
  CHECK(made.config.at("expert_dtype") == "fp8");
  CHECK(made.entry().at("scale_fmt") == "ue8m0");
  CHECK(made.scales(kExperts, "") == "F8_E8M0");
  CHECK(made.scales(kAttention, "") == "F8_E8M0");
  const auto warned = findings_of(made.findings, "e8m0-expert-scales");
  REQUIRE(warned.size() == 1);
  CHECK(contains(warned[0].message, "supports only scale_dtype: f32"));
}

TEST_CASE("the draft's experts stay or are cast as a rule says, and configs say which") {
  const Scratch scratch;
  make_source(scratch / "src", "released");
  const ReadTensors source = read_tensors(scratch / "src");
  const std::string expert = "mtp.0.ffn.experts.1.w2.";
  for (const std::string keeps : {"", ", draft_experts: keep"}) {
    CAPTURE(keeps);
    const Made made(scratch / "src", scratch / ("keep" + keeps), "{match: experts, to: nvfp4" + keeps + "}");
    const Json ignored = {"*.attn.*", "*.ffn.shared_experts.*", "head", "mtp.*"};
    CHECK(made.entry().at("ignore") == ignored);
    CHECK(made.hf_quant.at("exclude_modules") == ignored);
    CHECK(made.tensors.at(expert + "weight") == source.at(expert + "weight"));
    CHECK(made.tensors.at(expert + "scale") == source.at(expert + "scale"));
    CHECK(made.config.at("expert_dtype") == "fp4");
  }
  const Made cast(scratch / "src", scratch / "cast", "{match: experts, to: nvfp4, draft_experts: cast}");
  const Json ignored = {"*.attn.*", "*.ffn.shared_experts.*", "head"};
  CHECK(cast.entry().at("ignore") == ignored);
  CHECK(cast.hf_quant.at("exclude_modules") == ignored);
  CHECK(cast.entry().at("moe_quant_algo") == "NVFP4");
  CHECK(cast.entry().at("quant_method") == "fp8");
  CHECK(cast.entry().at("quantized_layers").contains("mtp.0.ffn.experts"));
  CHECK(cast.config.at("expert_dtype") == "fp4");
  CHECK(cast.tensors.at(expert + "weight_scale").dtype == DType::kF8E4M3);
  CHECK(cast.tensors.at(expert + "input_scale").as<float>() == std::vector<float>{1.0f});
  CHECK(!cast.tensors.contains(expert + "scale"));
  CHECK(cast.tensors.at("mtp.0.attn.wq_a.scale") == source.at("mtp.0.attn.wq_a.scale"));
}

TEST_CASE("a draft that loaders would read as the model's experts is refused, but for layouts") {
  const Scratch scratch;
  make_source(scratch / "src", "released");
  make_source(scratch / "base", "base");
  const auto refused = [&](const char* source, const std::string& rule) {
    const std::string message = message_of([&] { Made(scratch / source, scratch / "none", rule); });
    CHECK(!fs::exists(scratch / "none"));
    CHECK(contains(message, "mtp.0.ffn.experts.0.w1: expected the draft's experts in "));
    CHECK(contains(message, "draft_experts: cast converts them, too"));
    return message;
  };
  CHECK(contains(refused("src", "{match: experts, to: fp8, granularity: block, draft_experts: keep}"),
                 "found MXFP4"));
  CHECK(contains(refused("src", "{match: experts, to: fp8, granularity: block}"), "found MXFP4"));
  CHECK(contains(refused("base", "{match: experts, to: nvfp4}"), "found FP8 by blocks of 128 x 128"));
  Made(scratch / "base", scratch / "g8", "{match: experts, to: g8}");
  // A rule for all modules leaves the draft, too, where it is asked to.
  const std::string experts = "mtp.0.ffn.experts.1.w2.weight";
  const Made kept(scratch / "src", scratch / "kept",
                  "{match: '*.ffn.experts.*', to: nvfp4, draft_experts: keep}");
  CHECK(kept.tensors.at(experts) == read_tensors(scratch / "src").at(experts));
  const Made cast(scratch / "src", scratch / "cast",
                  "{match: '*.ffn.experts.*', to: nvfp4, draft_experts: cast}");
  CHECK(cast.tensors.at(experts).dtype == DType::kU8);
}

TEST_CASE("Base models give NVFP4 experts beside E8M0 scales, where theirs are powers of two") {
  const Scratch scratch;
  make_source(scratch / "src", "base");
  const Made made(scratch / "src", scratch / "out", "{match: experts, to: nvfp4, draft_experts: cast}");
  CHECK(made.config.at("expert_dtype") == "fp4");
  CHECK(made.entry().at("scale_fmt") == "ue8m0");
  CHECK(made.scales(kAttention, "") == "F8_E8M0");
  const ReadTensors source = read_tensors(scratch / "src");
  const std::string scale = "layers.0.attn.wo_b.scale";
  const std::vector<float> before = source.at(scale).as<float>();
  for (size_t i = 0; i < before.size(); ++i)
    CHECK(std::ldexp(1.0f, made.tensors.at(scale).bytes[i] - 127) == before[i]);
  // Another number has no place there.
  Tensors odd;
  for (const auto& [name, t] : source) odd.push_back({name, t.dtype, t.shape, t.bytes});
  const float value = before[1] * 1.5f;
  for (TensorData& t : odd) {
    if (t.name != scale) continue;
    std::memcpy(&t.bytes[sizeof(float)], &value, sizeof(value));
  }
  write_checkpoint(scratch / "odd", {odd}, read_text(scratch / "src" / "config.json"));
  const std::string refused = message_of(
      [&] { Made(scratch / "odd", scratch / "none", "{match: experts, to: nvfp4, draft_experts: cast}"); });
  CHECK(contains(refused, scale + ": expected scales that are powers of two"));
  CHECK(contains(refused, fmt::format("found {}; a separate rule (to: fp8, scale_dtype: e8m0)", value)));
  CHECK(!fs::exists(scratch / "none"));
  Made(scratch / "odd", scratch / "rounded",
       "{match: experts, to: nvfp4, draft_experts: cast}, {match: layers.0.attn.wo_b, to: fp8, scale_dtype: "
       "e8m0}");
  Made(scratch / "odd", scratch / "v7", "{match: experts, to: v7}");  // layouts ask no loader
}

TEST_CASE("the source's own FP8 beside experts of four bits stays in E8M0, and new FP8 becomes so") {
  const Scratch scratch;
  make_source(scratch / "src", "released");
  const Made made(scratch / "src", scratch / "out",
                  "{match: layers.2.attn.compressor.wkv, to: fp8, granularity: block}");
  CHECK(made.scales("", "") == "F8_E8M0");
  CHECK(made.config.at("expert_dtype") == "fp4");
  const Made odd(scratch / "src", scratch / "odd",
                 "{match: layers.2.attn.compressor.wkv, to: fp8, scale_dtype: f32}", false);
  CHECK(findings_of(odd.findings, "unlike-scale-types").size() == 1);
}

TEST_CASE("blocks of two sizes are refused, and BF16 leaves no expert_dtype") {
  const Scratch scratch;
  make_source(scratch / "src", "released");
  CHECK(contains(message_of([&] {
                   Made(scratch / "src", scratch / "none",
                        "{match: experts, to: fp8, block: 32x32, draft_experts: cast}");
                 }),
                 "expected FP8 in blocks of one size, because its weight_block_size states one, found"));
  const Made made(scratch / "src", scratch / "out", "{match: '*', to: bf16}");
  CHECK(!made.config.contains("expert_dtype"));
  CHECK(!made.config.contains("quantization_config"));
}

}  // namespace deepseek_v4_forms_test
