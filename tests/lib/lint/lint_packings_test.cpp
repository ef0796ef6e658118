#include <doctest/doctest.h>

#include "lib/lint/rules/levels.h"
#include "tests/support/lint_words.h"
#include "tests/support/scratch.h"
#include "tests/support/weights/stored_weights.h"

// Packings of other programs, and formats that the config and the tensors state differently.

namespace lint_packings_test {

using namespace twofour;
using namespace twofour::lint_words;

namespace {

constexpr int64_t kWide = 2048, kNarrow = 256;
const std::string kBlock = "model.layers.0.mlp.";

/// Gate, up and down of one layer, and a config of that size.
template <class Add>
Tensors mlp(Add&& add) {
  Tensors tensors;
  for (const char* name : {"gate_proj", "up_proj"}) add(tensors, kBlock + name, kNarrow, kWide);
  add(tensors, kBlock + "down_proj", kWide, kNarrow);
  return tensors;
}

LintReport linted(const Tensors& tensors, Json quantization, std::string_view profile = "") {
  Json config = {{"architectures", Json::array({"LlamaForCausalLM"})},
                 {"model_type", "llama"},
                 {"hidden_size", kWide},
                 {"intermediate_size", kNarrow},
                 {"num_hidden_layers", 1},
                 {"num_attention_heads", 16},
                 {"num_key_value_heads", 16},
                 {"vocab_size", 64},
                 {"tie_word_embeddings", true}};
  if (!quantization.is_null()) config["quantization_config"] = std::move(quantization);
  const Scratch scratch;
  write_checkpoint(scratch / "c", {tensors}, config.dump());
  return lint_headers(scratch / "c", levels_of({.profile = std::string(profile)}));
}

std::vector<LintFinding> of_mlp(const LintReport& report) {
  std::vector<LintFinding> found;
  for (const LintFinding& f : report.findings) {
    if (f.name.starts_with(kBlock) || f.name == "intermediate_size" || f.name.starts_with("quantization"))
      found.push_back(f);
  }
  return found;
}

void add_mlx(Tensors& to, const std::string& m, int64_t n, int64_t k) {
  StoredTensor(DType::kU32, {n, k / 8}, 1).add_to(to, m + ".weight");
  StoredTensor(DType::kBF16, {n, k / 64}, 2, 60).add_to(to, m + ".scales");
  StoredTensor(DType::kBF16, {n, k / 64}, 3, 60).add_to(to, m + ".biases");
}
void add_modelopt_awq(Tensors& to, const std::string& m, int64_t n, int64_t k) {
  StoredTensor(DType::kU8, {n / 2, k}, 1).add_to(to, m + ".weight");
  random_scales(DType::kF32, {n, k / 128}, 2).add_to(to, m + ".weight_scale");
  random_scales(DType::kBF16, {k}, 3).add_to(to, m + ".pre_quant_scale");
}
void add_quark(Tensors& to, const std::string& m, int64_t n, int64_t k) {
  StoredTensor(DType::kU8, {n, k / 2}, 1).add_to(to, m + ".weight");
  StoredTensor(DType::kU8, {n, k / 32}, 2, 200).add_to(to, m + ".weight_quantizer.scale");
}
void add_bitsandbytes(Tensors& to, const std::string& m, int64_t n, int64_t k) {
  StoredTensor(DType::kU8, {n * k / 2, 1}, 1).add_to(to, m + ".weight");
  StoredTensor(DType::kU8, {n * k / 64}, 2).add_to(to, m + ".weight.absmax");
  StoredTensor(DType::kU8, {90}, 3).add_to(to, m + ".weight.quant_state.bitsandbytes__nf4");
}
void add_of_32(Tensors& to, const std::string& m, int64_t n, int64_t k) {
  StoredTensor(DType::kU8, {n, k / 2}, 1).add_to(to, m + ".weight");
  StoredTensor(DType::kF8E4M3, {n, k / 32}, 2, 0x7F).add_to(to, m + ".weight_scale");
  to.push_back({m + ".weight_scale_2", DType::kF32, {}, {0, 0, 0, 0x3C}});
}
void add_mxfp6(Tensors& to, const std::string& m, int64_t n, int64_t k) {
  StoredTensor(DType::kU8, {n, k / 4 * 3}, 1).add_to(to, m + ".weight_packed");
  StoredTensor(DType::kU8, {n, k / 32}, 2, 120).add_to(to, m + ".weight_scale");
}

Json groups(int bits, const char* format) {
  const Json weights = {{"num_bits", bits}, {"type", "float"}, {"strategy", "group"}, {"group_size", 32}};
  return {{"quant_method", "compressed-tensors"},
          {"format", format},
          {"config_groups",
           {{"group_0", {{"targets", Json::array({"Linear"})}, {"weights", weights}, {"format", format}}}}}};
}
Json modelopt(const char* algorithm, int size) {
  return {{"quant_method", "modelopt"}, {"quant_algo", algorithm}, {"group_size", size}};
}

}  // namespace

TEST_CASE("a packing of another program is one finding, and its modules have no others") {
  struct Row {
    void (*add)(Tensors&, const std::string&, int64_t, int64_t);
    Json quantization;
    std::string format;
  };
  const Row rows[] = {
      {add_mlx, {{"group_size", 64}, {"bits", 4}}, "MLX's affine codes"},
      {add_modelopt_awq, modelopt("W4A16_AWQ", 128), "ModelOpt's INT4, as of W4A16_AWQ"},
      {add_quark, {{"quant_method", "quark"}}, "Quark's codes beside weight_quantizer.scale"},
      {add_bitsandbytes,
       {{"quant_method", "bitsandbytes"}, {"load_in_4bit", true}},
       "bitsandbytes' codes of four bits"},
  };
  for (const Row& row : rows) {
    CAPTURE(row.format);
    const LintReport report = linted(mlp(row.add), row.quantization);
    const auto found = of_mlp(report);
    CHECK(text_of(found) == "unsupported-format: model.safetensors: " + kBlock + "down_proj\n");
    REQUIRE(!found.empty());
    CHECK(found[0].message == "expected a format that twofour reads, found " + row.format +
                                  " here and in 2 more modules, which is not supported");
    CHECK(of_mlp(linted(mlp(row.add), row.quantization, "serve"))[0].severity == Severity::kNote);
    // The config does not name the format.
    const auto other = of_mlp(linted(mlp(row.add), modelopt("NVFP4", 16), "serve"));
    const auto at =
        std::ranges::find_if(other, [](auto& f) { return f.message.find("here and in") != f.message.npos; });
    REQUIRE(at != other.end());
    CHECK(at->severity == Severity::kWarning);
  }
}

TEST_CASE("formats that the config and the tensors state alike are sound") {
  for (const Json& configured : {modelopt("W4A16_NVFP4", 32), modelopt("W4A16_NVFP4", 32)})
    CHECK(text_of(of_mlp(linted(mlp(add_of_32), configured))) == "");
  CHECK(text_of(of_mlp(linted(mlp(add_mxfp6), groups(6, "mxfp6-pack-quantized")))) == "");
}

TEST_CASE("scales of fused linears, one for each matrix, are named") {
  const auto found_of = [](DType weight, int64_t columns, const char* scale, bool coded, const char* fused,
                           int64_t count) {
    Tensors tensors;
    const std::string m = "model.layers.0." + std::string(fused);
    StoredTensor(weight, {kNarrow * count, columns}, 1, 0x7F).add_to(tensors, m + ".weight");
    if (coded)
      StoredTensor(DType::kF8E4M3, {kNarrow * count, kWide / 16}, 2, 0x7F)
          .add_to(tensors, m + ".weight_scale");
    random_scales(DType::kF32, {count}, 3).add_to(tensors, m + scale);
    const Scratch scratch;
    write_checkpoint(scratch / "c", {tensors}, "{}");
    std::string words;
    const auto take = [&](const auto& self, const std::vector<LintFinding>& findings) -> void {
      for (const LintFinding& f : findings) {
        if (lint_rules()[f.rule].id == std::string_view("module-shape"))
          words += f.where() + ": " + f.message + "\n";
        self(self, f.consequences);
      }
    };
    take(take, lint_headers(scratch / "c").findings);
    return words;
  };
  const auto says = [](const std::string& text, const char* tensor, int count) {
    CAPTURE(text);
    CHECK(text.find(tensor) != std::string::npos);
    CHECK(text.find(fmt::format(", a scale for each of {} fused matrices", count)) != std::string::npos);
  };
  says(found_of(DType::kU8, kWide / 2, ".weight_scale_2", true, "self_attn.qkv_proj", 3),
       "model.layers.0.self_attn.qkv_proj.weight_scale_2", 3);
  says(found_of(DType::kU8, kWide / 2, ".weight_scale_2", true, "mlp.gate_up_proj", 2),
       "model.layers.0.mlp.gate_up_proj.weight_scale_2", 2);
  says(found_of(DType::kF8E4M3, kWide, ".weight_scale", false, "linear_attn.in_proj_qkv", 3),
       "model.layers.0.linear_attn.in_proj_qkv.weight_scale", 3);
}

TEST_CASE("stacks in FP8 may have their scales by transformers' name") {
  for (const char* suffix : {"_scale_inv", "_weight_scale"}) {
    CAPTURE(suffix);
    Tensors tensors;
    for (const char* name : {"experts.gate_up_proj", "experts.down_proj"}) {
      StoredTensor(DType::kF8E4M3, {2, 64, 32}, 1).add_to(tensors, kBlock + name);
      StoredTensor(DType::kF32, {2}, 2).add_to(tensors, kBlock + name + suffix);
    }
    const LintReport report = linted(tensors, {{"quant_method", "fp8"}, {"activation_scheme", "dynamic"}});
    const bool lacks = std::any_of(report.findings.begin(), report.findings.end(), [](const LintFinding& f) {
      return f.message.find("as the config promises") != std::string::npos;
    });
    CHECK(!lacks);
  }
}

TEST_CASE("scales of another width than the config says are an error in every profile") {
  for (const char* profile : {"", "serve", "publish"}) {
    const auto found = of_mlp(linted(mlp(add_of_32), modelopt("NVFP4", 16), profile));
    const auto at = std::ranges::find_if(
        found, [](auto& f) { return lint_rules()[f.rule].id == std::string_view("config-group-size"); });
    REQUIRE(at != found.end());
    CHECK(at->severity == Severity::kError);
    CHECK(at->message ==
          "expected block scales for 16 weights (the config), found F8_E4M3 [2048, 8], for 32 weights, and "
          "in 2 more modules");
  }
  // Stacks of experts with such scales are named. They contradict a config that does not say so.
  Tensors stack;
  const std::string m = kBlock + "experts.down_proj";
  StoredTensor(DType::kU8, {2, kNarrow, kWide / 2}, 1).add_to(stack, m);
  StoredTensor(DType::kF8E4M3, {2, kNarrow, kWide / 32}, 2, 0x7F).add_to(stack, m + "_weight_scale");
  stack.push_back({m + "_weight_scale_2", DType::kF32, {}, {0, 0, 0, 0x3C}});
  for (const int size : {16, 32}) {
    const auto named =
        of_mlp(linted(stack, modelopt(size == 32 ? "W4A8_NVFP4_FP8" : "NVFP4", size), "serve"));
    const auto at = std::ranges::find_if(
        named, [](auto& f) { return lint_rules()[f.rule].id == std::string_view("unsupported-format"); });
    REQUIRE(at != named.end());
    CHECK(at->where() == "model.safetensors: " + m + "_weight_scale");
    CHECK(at->severity == (size == 32 ? Severity::kNote : Severity::kWarning));
    CHECK(!rules_of(named).contains("module-shape"));
  }
  const auto found = rules_of(of_mlp(linted(mlp(add_mxfp6), groups(4, "mxfp4-pack-quantized"))));
  CHECK(found == std::set<std::string>{"config-format"});
}

}  // namespace lint_packings_test
