#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>

#include "tests/support/faults/lint_changed.h"

// Weights and scales against their siblings': what fires, and what looks alike and must not.

namespace lint_siblings_test {

using namespace twofour;
using namespace twofour::spoil;
using enum Base;

namespace {

using Rules = std::set<std::string>;

std::function<float(float)> times(float factor) {
  return [=](float x) { return x * factor; };
}

/// The text of the one finding of a rule.
std::string only_message(const LintReport& report, const std::string& rule) {
  std::vector<std::string> found;
  for (const LintFinding& f : report.findings) {
    if (lint_rules()[f.rule].id == rule) found.push_back(f.message);
  }
  REQUIRE(found.size() == 1);
  return found[0];
}

/// The rules of all findings, a line each.
std::string texts_of(const LintReport& report) {
  std::string text;
  for (const std::string& rule : rules_of(report)) text += rule + "\n";
  return text;
}

bool has(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

/// No number of E4M3 at 448.
Change without_full_numbers(std::string pattern) {
  return map_bytes(std::move(pattern), [](uint8_t b, size_t, auto&) {
    return static_cast<uint8_t>((b & 0x7F) == 0x7E ? b - 6 : b);
  });
}

Change copy_first(std::string from, std::string pattern) {
  return [=](Save& s, auto&) {
    const std::vector<uint8_t> one = s.at(from).bytes;
    for (TensorData* t : tensors(s, pattern)) t->bytes = one;
  };
}

}  // namespace

TEST_CASE("expert-outlier: an expert of sixteen times the weights, not of one and a half") {
  const char* scales = "model.layers.2.mlp.experts.5.*weight_scale_2";
  CHECK(rules_of_change(kMoe, map_floats(scales, times(16))) == Rules{"expert-outlier"});
  CHECK(rules_of_change(kMoe, map_floats(scales, times(1 / 16.0f))) == Rules{"expert-outlier"});
  CHECK(rules_of_change(kMoe, map_floats(scales, times(1.5f))).empty());
}

TEST_CASE("layer-outlier: thirty times the weights of other layers, not four times") {
  const char* scale = "model.layers.1.self_attn.o_proj.weight_scale_2";
  CHECK(rules_of_change(kLlama, map_floats(scale, times(30))) == Rules{"layer-outlier"});
  CHECK(rules_of_change(kLlama, map_floats(scale, times(4))).empty());
}

TEST_CASE("implausible-weights: the finding says what a scale seems to be") {
  const auto message = [](const Change& change) {
    const LintReport report = lint_changed(kLlama, change);
    CHECK(texts_of(report) == "implausible-weights\n");
    return only_message(report, "implausible-weights");
  };
  const char* all = "model.layers.*.weight_scale_2";
  const std::string unset = message(set_floats(all, 1));
  CHECK(has(unset, "weight_scale_2 is 1, as if it were never set"));
  CHECK(has(unset, "; so have "));
  const char* one = "model.layers.1.mlp.down_proj.weight_scale_2";
  const std::string six = message(set_floats(one, 6));
  CHECK(has(six, "the largest code"));
  CHECK(rules_of_change(kLlama, map_floats(all, times(8))).empty());
}

TEST_CASE("copied-scale: one global scale for matrices that each fill its range, not what engines fuse") {
  const std::string first = "model.layers.0.self_attn.o_proj.weight_scale_2";
  CHECK(rules_of_change(kMoe, copy_first(first, "model.layers.*.weight_scale_2")) == Rules{"copied-scale"});
  const std::string experts = "model.layers.1.block_sparse_moe.experts.";
  CHECK(rules_of_change(kMixtral, copy_first(experts + "0.w1.weight_global_scale",
                                             experts + "*.weight_global_scale")) == Rules{"copied-scale"});
  // Gate and up share one in every base. Where one scale is for all and few fill it, it was shared on
  // purpose.
  CHECK(rules_of_change(kMoe, [&](Save& s, std::mt19937& random) {
          copy_first(first, "model.layers.*.weight_scale_2")(s, random);
          for (TensorData* t : tensors(s, "model.layers.*.weight_scale")) {
            if (random() % 3 == 0) continue;
            for (uint8_t& b : t->bytes) b = static_cast<uint8_t>(std::min<int>(b, 0x7A));
          }
        }).count("copied-scale") == 0);
}

TEST_CASE("copied-scale: block scales of another matrix, of one row or of one block") {
  const std::string module = "model.layers.2.mlp.gate_proj";
  CHECK(rules_of_change(kLlama,
                        copy_first(module + ".weight_scale", "model.layers.1.mlp.gate_proj.weight_scale")) ==
        Rules{"copied-scale"});
  const auto spread = [&](auto source) {
    return edit_tensors(module + ".weight_scale", [=](TensorData& t) {
      const size_t row = row_bytes(t);
      const std::vector<uint8_t> old = t.bytes;
      for (size_t i = 0; i < t.bytes.size(); ++i) t.bytes[i] = old[source(i / row, i % row, row)];
    });
  };
  CHECK(rules_of_change(kLlama, spread([](size_t, size_t c, size_t) { return c; })) == Rules{"copied-scale"});
  CHECK(rules_of_change(kLlama, spread([](size_t r, size_t, size_t row) { return r * row; })) ==
        Rules{"copied-scale"});
  // Some rows are alike by nature.
  CHECK(rules_of_change(
            kLlama, spread([](size_t r, size_t c, size_t row) { return (r % 8 == 1 ? r - 1 : r) * row + c; }))
            .empty());
}

TEST_CASE("copied-scale: one scale for all rows of FP8 that each reach 448, not one that few reach") {
  const std::string module = "model.language_model.layers.0.linear_attn.in_proj_z";
  const Change copy = edit_tensors(module + ".weight_scale", [](TensorData& t) {
    for (size_t i = 2; i < t.bytes.size(); ++i) t.bytes[i] = t.bytes[i % 2];
  });
  CHECK(rules_of_change(kQwenRow, copy) == Rules{"copied-scale"});
  CHECK(rules_of_change(kQwenRow, all_of({copy, without_full_numbers(module + ".weight")})).empty());
}

TEST_CASE("copied-scale: one input scale for all, one layer's for all layers, one for all caches") {
  CHECK(rules_of_change(kMoe, set_floats("model.layers.*.input_scale", 0.003f)) == Rules{"copied-scale"});
  CHECK(rules_of_change(kMoe, set_floats("model.layers.*.input_scale", 1)).count("copied-scale") == 0);
  CHECK(rules_of_change(kLlamaKv, set_floats("model.layers.*.k_scale", 0.03f)) == Rules{"copied-scale"});
  CHECK(rules_of_change(kLlamaKv, set_floats("model.layers.*.k_scale", 1)).empty());
  const auto layers = [](bool all) {
    return [=](Save& s, auto&) {
      for (int layer = 1; layer < 3; ++layer) {
        for (TensorData* t : tensors(s, "model.layers." + std::to_string(layer) + ".*.input_scale")) {
          if (!all && t->name.find("down_proj") != std::string::npos) continue;
          t->bytes = s.at("model.layers.0" + t->name.substr(std::strlen("model.layers.0"))).bytes;
        }
      }
    };
  };
  CHECK(rules_of_change(kLlama, layers(true)) == Rules{"copied-scale"});
  CHECK(rules_of_change(kLlama, layers(false)).empty());
}

TEST_CASE("suspicious-scale: inputs and caches of sizes that their siblings have nowhere near") {
  const char* input = "model.layers.2.mlp.down_proj.input_scale";
  CHECK(rules_of_change(kLlama, map_floats(input, times(2688))) == Rules{"suspicious-scale"});
  CHECK(rules_of_change(kLlama, map_floats(input, times(100))).empty());  // a massive channel
  const char* keys = "model.layers.*.k_scale";
  CHECK(rules_of_change(kLlamaKv, map_floats(keys, [](float x) { return 1 / x; })) ==
        Rules{"suspicious-scale"});
  CHECK(rules_of_change(kLlamaKv, map_floats(keys, times(20))).empty());
  const char* layer = "model.layers.1.self_attn.*.v_scale";
  CHECK(rules_of_change(kLlamaKv, map_floats(layer, times(448))) == Rules{"suspicious-scale"});
  CHECK(rules_of_change(kLlamaKv, map_floats(layer, times(20))).empty());
  CHECK(rules_of_change(kLlama, set_floats(input, 1)) ==
        Rules{"suspicious-scale"});  // no calibration gives it
}

TEST_CASE("missing-input-scale: where siblings have them, and no list says that there are none") {
  const std::string experts = "backbone.layers.3.mixer.experts.";
  CHECK(rules_of_change(kNemotron, drop(experts + "*.input_scale")).contains("missing-input-scale"));
  const LintReport report = lint_changed(kNemotron, [&](Save& s, std::mt19937& random) {
    drop(experts + "0.down_proj.input_scale")(s, random);
    for (const char* path : {"quantization_config.quantized_layers"}) {
      s.edit("config.json", [&](Json& j) {
        Json& layers = at_path(j, path);
        layers[experts + "0.down_proj"]["quant_algo"] = "W4A16_NVFP4";
      });
    }
  });
  for (const LintFinding& f : report.findings) CHECK_FALSE(has(f.message, "like it"));
}

TEST_CASE("missing-input-scale: a group for weights alone is for its own modules") {
  const char* up = "model.layers.1.mlp.up_proj";
  const auto lint_with_group = [&](const std::string& target) {
    return lint_changed(kLlamaCt, [&](Save& s, std::mt19937& random) {
      drop(std::string(up) + ".input_global_scale")(s, random);
      s.edit("config.json", [&](Json& j) {
        Json& groups = at_path(j, "quantization_config.config_groups");
        Json alone = groups["group_0"];
        alone["targets"] = Json::array({target});
        alone["input_activations"] = nullptr;
        groups["weights_alone"] = std::move(alone);
      });
    });
  };
  const auto is_missed = [](const LintReport& report) {
    return std::any_of(report.findings.begin(), report.findings.end(),
                       [](const LintFinding& f) { return has(f.message, "like it"); });
  };
  CHECK_FALSE(is_missed(lint_with_group(up)));
  CHECK(is_missed(lint_with_group("model.layers.0.mlp.down_proj")));
}

TEST_CASE("missing-input-scale: one, half, most or all experts of a layer, and half of them by matrices") {
  const std::string experts = "model.layers.2.mlp.experts.";
  const size_t all = 16;
  for (const size_t count : {size_t{1}, all / 2 - 1, all / 2, all / 2 + 1, all - 1, all}) {
    for (const bool first : {true, false}) {
      CAPTURE(count);
      CAPTURE(first);
      size_t found = 0;
      const LintReport report = lint_changed(kMoe, [&](Save& s, std::mt19937& random) {
        for (size_t i = 0; i < count; ++i) {
          const size_t expert = first ? i : all - 1 - i;
          drop(experts + std::to_string(expert) + ".*.input_scale")(s, random);
        }
      });
      for (const LintFinding& f : report.findings) {
        if (f.severity == Severity::kNote) continue;
        CHECK(std::string(lint_rules()[f.rule].id) == "missing-input-scale");
        found += 1 + f.consequences.size();
      }
      // A finding for each matrix, or one for the layer.
      CHECK(found == (2 * count > all ? 1 : 3 * count));
    }
  }
  // Whatever the other matrices of the same experts lack.
  const LintReport mixed = lint_changed(kMoe, [&](Save& s, std::mt19937& random) {
    for (const int e : {0, 1, 2, 3, 4, 5, 6})
      drop(experts + std::to_string(e) + ".gate_proj.input_scale")(s, random);
    for (const int e : {7, 8, 9, 10}) drop(experts + std::to_string(e) + ".up_proj.input_scale")(s, random);
  });
  CHECK(mixed.count(Severity::kError) + mixed.consequences() == 11);
}

TEST_CASE("missing-kv-scale: keys without values, and a layer without either") {
  const LintReport report = lint_changed(kLlamaKv, drop("model.layers.*.v_scale"));
  CHECK(rules_of(report).contains("missing-kv-scale"));
  CHECK(rules_of_change(kLlamaKv, all_of({drop("model.layers.1.self_attn.k_proj.k_scale"),
                                          drop("model.layers.1.self_attn.v_proj.v_scale")}))
            .contains("missing-kv-scale"));
  CHECK(rules_of_change(kLlamaKv, {}).empty());
}

}  // namespace lint_siblings_test
