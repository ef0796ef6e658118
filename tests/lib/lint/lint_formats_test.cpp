#include <doctest/doctest.h>

#include <cstring>

#include "tests/support/faults/lint_changed.h"

// Weights in INT4, FP8, MXFP4 and MXFP8, norms, biases and embeddings: what fires, and what looks alike and
// must not.

namespace lint_formats_test {

using namespace twofour;
using namespace twofour::spoil;
using enum Base;

namespace {

using Rules = std::set<std::string>;

std::function<float(float)> times(float factor) {
  return [=](float x) { return x * factor; };
}

const std::string kExpert = "model.layers.1.mlp.experts.1.gate_proj.weight";
const std::string kRows = "model.language_model.layers.0.linear_attn.in_proj_z.weight";  // FP8, a scale a row

Change fill(std::string pattern, uint8_t byte) {
  return map_bytes(std::move(pattern), [=](uint8_t, size_t, auto&) { return byte; });
}

/// Zeros from byte `begin` on.
Change punch(std::string name, size_t begin, size_t count) {
  return edit_tensors(std::move(name), [=](TensorData& t) {
    std::memset(&t.bytes.at(begin), 0, std::min(count, t.bytes.size() - begin));
  });
}

/// The numbers of a row-scaled FP8 matrix set to zero in one row.
Change zero_row(int64_t row) {
  return map_rows(kRows, [=](int64_t r, uint8_t* bytes, size_t count) {
    if (r == row) std::memset(bytes, 0, count);
  });
}

Change set_scale(size_t row, float value) {
  return edit_tensors(kRows + "_scale", [=](TensorData& t) {
    uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof(bits));
    REQUIRE(t.dtype == DType::kBF16);
    t.bytes[2 * row] = static_cast<uint8_t>(bits >> 16);
    t.bytes[2 * row + 1] = static_cast<uint8_t>(bits >> 24);
  });
}

}  // namespace

TEST_CASE("INT4: scales and codes are held against what weights have") {
  CHECK(rules_of_change(kInt4, {}).empty());
  const std::string codes = kExpert + "_packed", scale = kExpert + "_scale";
  CHECK(rules_of_change(kInt4, map_floats(scale, [](float x) { return 1 / x; })) ==
        Rules{"implausible-weights"});
  CHECK(rules_of_change(kInt4, map_floats(scale, times(8))) == Rules{"expert-outlier"});
  CHECK(rules_of_change(kInt4, set_floats(scale, 0)) == Rules{"zero-scale"});
  CHECK(rules_of_change(kInt4, fill(codes, 0x88)) == Rules{"zero-weights"});
  CHECK(rules_of_change(kInt4, map_bytes(codes, [](uint8_t b, size_t, auto&) {
                          return static_cast<uint8_t>(b ^ 0x88);
                        })) == Rules{"odd-codes"});  // two's complement
  CHECK(rules_of_change(kInt4, map_bytes(codes, [](uint8_t, size_t, std::mt19937& random) {
                          return static_cast<uint8_t>(random());
                        })) == Rules{"odd-codes"});
  const std::string other = "model.layers.1.mlp.experts.0.gate_proj.weight";
  CHECK(rules_of_change(kInt4, copy_bytes(kExpert, other)) == Rules{"identical-weights"});
  CHECK(rules_of_change(kInt4, set_key("quantization_config.config_groups.group_0.weights.group_size", 64)) ==
        Rules{"config-group-size"});
}

TEST_CASE("zero-scale: above weights other than zero, in FP8 and in E8M0") {
  CHECK(rules_of_change(kQwenRow, set_scale(3, 0)) == Rules{"zero-scale"});
  CHECK(rules_of_change(kQwenRow, all_of({set_scale(3, 0), zero_row(3)})).empty());
  CHECK(rules_of_change(kQwenRow, all_of({set_scale(3, 1), zero_row(3)})).empty());  // of any size
  CHECK(rules_of_change(kDeepSeek, edit_tensors("model.layers.0.mlp.up_proj.weight_scale_inv",
                                                [](TensorData& t) { std::memset(t.bytes.data(), 0, 4); })) ==
        Rules{"zero-scale"});
  const Change half = edit_tensors("model.layers.1.mlp.experts.down_proj_scales", [](TensorData& t) {
    for (size_t i = 0; i < t.bytes.size(); i += 2) t.bytes[i] = 0;
  });
  CHECK(rules_of_change(kGptOss, half).contains("zero-scale"));
}

TEST_CASE("zero-regions: holes, and rows that siblings have not, but not padding") {
  const std::string codes = "model.layers.1.self_attn.o_proj.weight";
  const Rules zero{"zero-regions"};
  CHECK(rules_of_change(kLlama, punch(codes, 4321, 4096)) == zero);
  CHECK(rules_of_change(kLlama, punch(codes, 128 * 5, 128 * 3)).empty());  // three rows
  CHECK(rules_of_change(kLlama, punch(codes, 128 * 32, 128 * 24)) == zero);
  // In all layers alike it is meant.
  CHECK(rules_of_change(kLlama, punch("model.layers.*.self_attn.o_proj.weight", 128 * 32, 128 * 24)).empty());
  // The last columns of all rows are padding.
  CHECK(rules_of_change(kLlama,
                        map_rows("model.layers.*.self_attn.o_proj.weight",
                                 [](int64_t, uint8_t* b, size_t n) { std::memset(b + n - n / 8, 0, n / 8); }))
            .empty());
}

TEST_CASE("amax-mismatch: of FP8, where codes use a quarter of the range, not where a scale is of 1") {
  const std::string matrix = "model.layers.0.self_attn.o_proj.weight";
  const Change halve_twice = map_bytes(matrix, [](uint8_t b, size_t, auto&) {
    const int magnitude = b & 0x7F;
    return static_cast<uint8_t>((b & 0x80) | (magnitude > 16 ? magnitude - 16 : 0));
  });
  CHECK(rules_of_change(kDeepSeek, {}).empty());
  CHECK(rules_of_change(kDeepSeek, halve_twice).contains("amax-mismatch"));
  // Scaled the other way by as much, weights are what they were.
  const Change compensate = map_floats(matrix + "_scale_inv", times(4));
  CHECK(rules_of_change(kDeepSeek, all_of({halve_twice, compensate})).count("layer-outlier") == 0);
}

TEST_CASE("norms, biases and embeddings have limits of their own") {
  CHECK(rules_of_change(kLlama, set_floats("model.norm.weight", 0)).contains("layer-outlier"));
  CHECK(rules_of_change(kLlama, map_floats("model.norm.weight", times(1e6f))) ==
        Rules{"implausible-weights"});
  CHECK(rules_of_change(kLlama, map_floats("model.embed_tokens.weight", times(1e4f))) ==
        Rules{"implausible-weights"});
  CHECK(rules_of_change(kDeepSeek, map_floats("model.layers.3.mlp.gate.e_score_correction_bias",
                                              times(1e6f))) == Rules{"implausible-weights"});
}

TEST_CASE("settings that are one of some words, and numbers in quotes") {
  const auto types = [](const char* last) { return Json{"full_attention", "full_attention", last}; };
  CHECK(rules_of_change(kLlama, set_key("layer_types", types("full_attention"))).empty());
  CHECK(rules_of_change(kLlama, set_key("layer_types", types("local"))) == Rules{"odd-setting"});
  CHECK(rules_of_change(kUnknown, set_key("layer_types", types("local"))).empty());
  CHECK(rules_of_change(kLlama, set_key("max_window_layers", "28")) == Rules{"odd-setting"});
  CHECK(rules_of_change(kLlama, set_key("use_sliding_window", "false")) == Rules{"odd-setting"});
  CHECK(rules_of_change(kLlama, set_key("transformers_version", "5.1")).empty());
  CHECK(rules_of_change(kDeepSeek, set_key("topk_method", "greedy")) == Rules{"impossible-setting"});
  CHECK(rules_of_change(kDeepSeek, set_key("scoring_func", "softmax")) == Rules{"impossible-setting"});
}

}  // namespace lint_formats_test
