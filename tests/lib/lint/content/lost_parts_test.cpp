#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <random>

#include "formats/e4m3.h"
#include "formats/half.h"
#include "lib/lint/lint.h"
#include "tests/support/faults/faults.h"
#include "tests/support/faults/large_model.h"
#include "tests/support/scratch.h"

// Whole rows that were never written, are there twice, or lost their scales. Beside them, rows that are zero,
// equal or of one size by design.

namespace lost_parts_test {

using namespace twofour;
using Span = std::span<uint8_t>;
using Edit = LargeModel::Edit;
using Edits = std::vector<std::pair<std::string, Edit>>;

namespace {

constexpr size_t kHidden = 1024, kInner = 2048;
const std::string kMlp = "model.layers.1.mlp.", kGate = kMlp + "gate_proj.weight",
                  kUp = kMlp + "up_proj.weight", kDown = kMlp + "down_proj.weight",
                  kAttention = "model.layers.1.self_attn.";

/// Two layers of a llama, of 2048 x 1024, in BF16 or in FP8 with a scale for each row. Rows differ in size.
class Model {
 public:
  explicit Model(bool is_fp8) : is_fp8_(is_fp8) {
    add_bf16("model.embed_tokens.weight", 1024, kHidden);
    add_bf16("lm_head.weight", 1024, kHidden);
    norm("model.norm.weight");
    for (int layer = 0; layer < 2; ++layer) {
      const std::string at = fmt::format("model.layers.{}.", layer);
      norm(at + "input_layernorm.weight");
      norm(at + "post_attention_layernorm.weight");
      for (const char* name : {"q", "k", "v", "o"})
        add(fmt::format("{}self_attn.{}_proj.weight", at, name), kHidden, kHidden);
      add(at + "mlp.gate_proj.weight", kInner, kHidden);
      add(at + "mlp.up_proj.weight", kInner, kHidden);
      add(at + "mlp.down_proj.weight", kHidden, kInner);
    }
    save.files["config.json"] = fmt::format(
        R"({{"architectures":["LlamaForCausalLM"],"model_type":"llama","hidden_size":1024,"intermediate_size":2048,
"num_hidden_layers":2,"num_attention_heads":8,"num_key_value_heads":8,"head_dim":128,"vocab_size":1024,
"rms_norm_eps":1e-5,"rope_theta":10000.0,"hidden_act":"silu","max_position_embeddings":4096,
"tie_word_embeddings":false,"torch_dtype":"bfloat16"{}}})",
        is_fp8 ? kScheme : "");
  }
  std::string lines() const {
    const Scratch scratch;
    write_save(save, scratch / "model");
    Progress progress;
    return lines_of(lint(scratch / "model", {}, progress));
  }
  /// Rows from `begin` to `end`, and columns likewise, become zeros in BF16.
  void clear_rows(const std::string& name, size_t begin, size_t end) {
    TensorData& t = save.at(name);
    const size_t row = t.bytes.size() / static_cast<size_t>(t.shape[0]);
    std::fill(t.bytes.begin() + static_cast<std::ptrdiff_t>(begin * row),
              t.bytes.begin() + static_cast<std::ptrdiff_t>(end * row), uint8_t{0});
  }
  void clear_columns(const std::string& name, size_t begin, size_t end) {
    TensorData& t = save.at(name);
    const size_t row = t.bytes.size() / static_cast<size_t>(t.shape[0]);
    for (size_t i = 0; i < t.bytes.size(); ++i)
      if (i % row / 2 >= begin && i % row / 2 < end) t.bytes[i] = 0;
  }
  Save save{};

 private:
  static constexpr const char* kScheme =
      R"(,"quantization_config":{"config_groups":{"group_0":{"format":"float-quantized","targets":["Linear"],
"input_activations":{"dynamic":true,"num_bits":8,"strategy":"token","symmetric":true,"type":"float"},
"weights":{"dynamic":false,"num_bits":8,"strategy":"channel","symmetric":true,"type":"float"}}},
"format":"float-quantized","ignore":["lm_head"],"quant_method":"compressed-tensors",
"quantization_status":"compressed"})";

  std::vector<float> numbers(size_t rows, size_t columns) {
    std::normal_distribution<float> normal;
    std::vector<float> x(rows * columns);
    for (size_t r = 0; r < rows; ++r) {
      const float size = 0.02f * std::exp(0.25f * normal(random_));
      for (size_t k = 0; k < columns; ++k) {
        const float v = normal(random_);
        x[r * columns + k] = size * v * (0.8f + 0.1f * v * v);
      }
    }
    return x;
  }
  void push(const std::string& name, DType type, std::vector<int64_t> shape, std::vector<uint8_t> bytes) {
    save.shards["model.safetensors"].push_back({name, type, std::move(shape), std::move(bytes)});
  }
  void add_bf16(const std::string& name, size_t rows, size_t columns) {
    const std::vector<float> x = numbers(rows, columns);
    std::vector<uint8_t> bytes(2 * x.size());
    for (size_t i = 0; i < x.size(); ++i) {
      const uint16_t half = bf16_from_float(x[i]);
      std::memcpy(&bytes[2 * i], &half, 2);
    }
    push(name, DType::kBF16, {static_cast<int64_t>(rows), static_cast<int64_t>(columns)}, std::move(bytes));
  }
  void norm(const std::string& name) {
    std::normal_distribution<float> normal(1, 0.1f);
    std::vector<uint8_t> bytes(2 * kHidden);
    for (size_t i = 0; i < kHidden; ++i) {
      const uint16_t half = bf16_from_float(normal(random_));
      std::memcpy(&bytes[2 * i], &half, 2);
    }
    push(name, DType::kBF16, {kHidden}, std::move(bytes));
  }
  void add(const std::string& name, size_t rows, size_t columns) {
    if (!is_fp8_) return add_bf16(name, rows, columns);
    const std::vector<float> x = numbers(rows, columns);
    std::vector<uint8_t> codes(x.size()), scales(4 * rows);
    for (size_t r = 0; r < rows; ++r) {
      float most = 0;
      for (size_t k = 0; k < columns; ++k) most = std::max(most, std::fabs(x[r * columns + k]));
      const float scale = most / 448;
      for (size_t k = 0; k < columns; ++k)
        codes[r * columns + k] = e4m3_from_float(x[r * columns + k] / scale);
      std::memcpy(&scales[4 * r], &scale, 4);
    }
    const auto n = static_cast<int64_t>(rows);
    push(name, DType::kF8E4M3, {n, static_cast<int64_t>(columns)}, std::move(codes));
    push(name + "_scale", DType::kF32, {n, 1}, std::move(scales));
  }
  bool is_fp8_;
  std::mt19937 random_{5};
};

const Model& sound(bool is_fp8) {
  static const Model bf16(false), fp8(true);
  return is_fp8 ? fp8 : bf16;
}

std::string lines(const char* format, const Edits& edits) {
  return lines_of(LargeModel::get(format).lint_changed(edits));
}

/// The only finding is of the rule and names the tensor's module.
void check_found(const std::string& all, const std::string& rule, const std::string& tensor) {
  CAPTURE(all);
  CHECK(all.starts_with(rule + ": " + tensor.substr(0, tensor.rfind('.'))));
  CHECK(std::ranges::count(all, '\n') == 1);
}

/// Sets the scales of rows from the function of a row.
void set_scales(Model& m, const std::string& name, const std::function<float(size_t)>& f) {
  TensorData& t = m.save.at(name + "_scale");
  for (size_t r = 0; 4 * r < t.bytes.size(); ++r) {
    const float scale = f(r);
    std::memcpy(&t.bytes[4 * r], &scale, 4);
  }
}

}  // namespace

TEST_CASE("lost parts: nothing is found in sound models of two layers") {
  CHECK(sound(false).lines() == "");
  CHECK(sound(true).lines() == "");
}

TEST_CASE("lost parts: all norms less 1, in a family that multiplies by weights") {
  const auto less_one = [](Model& m, bool all) {
    for (TensorData& t : m.save.shards.at("model.safetensors")) {
      if (!t.name.ends_with("norm.weight") || (!all && t.name.find("input") != t.name.npos)) continue;
      for (size_t i = 0; i < t.bytes.size(); i += 2) {
        uint16_t half = 0;
        std::memcpy(&half, &t.bytes[i], 2);
        half = bf16_from_float(bf16_to_float(half) - 1);
        std::memcpy(&t.bytes[i], &half, 2);
      }
    }
  };
  Model m = sound(false);
  less_one(m, true);
  check_found(m.lines(), "odd-numbers", "model.layers.0.input_layernorm.weight");
  // gemma multiplies by 1 more.
  std::string& config = m.save.files["config.json"];
  config.replace(config.find("LlamaForCausalLM"), 16, "GemmaForCausalLM");
  config.replace(config.find("\"llama\""), 7, "\"gemma\"");
  CHECK(m.lines().find("odd-numbers") == std::string::npos);
  // Norms of one kind are near 1.
  Model some = sound(false);
  less_one(some, false);
  CHECK(some.lines().find("odd-numbers") == std::string::npos);
}

TEST_CASE("lost parts: 64 KiB of zeros fill 32 rows of one matrix") {
  Model m = sound(false);
  m.clear_rows(kGate, 512, 544);
  check_found(m.lines(), "zero-regions", kGate);
  // Channels that gate, up and down lack; rows at the end; rows that fill no page; rows in every layer.
  m.clear_rows(kUp, 512, 544);
  CHECK(m.lines() == "");
  m.clear_columns(kDown, 512, 544);
  CHECK(m.lines() == "");
  for (const auto& [begin, end] :
       {std::pair<size_t, size_t>{2016, 2048}, {515, 547}, {512, 533}, {512, 520}}) {
    Model other = sound(false);
    other.clear_rows(kUp, begin, end);
    CHECK(other.lines() == "");
  }
  Model both = sound(false);
  for (const char* layer : {"0", "1"})
    both.clear_rows(fmt::format("model.layers.{}.mlp.gate_proj.weight", layer), 512, 544);
  CHECK(both.lines() == "");
}

TEST_CASE("lost parts: NVFP4 rows of zeros under scales of other weights") {
  const auto rows = [](uint8_t value) -> Edit {
    return [=](Span b, size_t row, std::mt19937&) { std::fill_n(b.begin() + 100 * row, 8 * row, value); };
  };
  const auto columns = [](Span b, size_t row, std::mt19937&) {
    for (size_t i = 0; i < b.size(); ++i)
      if (i % row >= 50 && i % row < 54) b[i] = 0;
  };
  check_found(lines("nvfp4", {{kGate, rows(0)}}), "zero-regions", kGate);
  for (const uint8_t scale : {uint8_t{0}, uint8_t{1}, uint8_t{0x38}}) {
    CAPTURE(int{scale});
    CHECK(lines("nvfp4", {{kGate, rows(0)}, {kGate + "_scale", rows(scale)}}) == "");
  }
  CHECK(lines("nvfp4", {{kGate, rows(0)}, {kUp, rows(0)}}) == "");
  CHECK(lines("nvfp4", {{kGate, rows(0)}, {kUp, rows(0)}, {kDown, columns}}) == "");
}

TEST_CASE("lost parts: one rank's heads are twice in keys alone, in keys and values by design") {
  const Edit twice = [](Span b, size_t, std::mt19937&) {
    std::copy_n(b.begin(), b.size() / 2, b.begin() + static_cast<std::ptrdiff_t>(b.size() / 2));
  };
  const std::string keys = kAttention + "k_proj.weight", values = kAttention + "v_proj.weight";
  check_found(lines("bf16", {{keys, twice}}), "repeated-rows", keys);
  check_found(lines("bf16", {{values, twice}}), "repeated-rows", values);
  CHECK(lines("bf16", {{keys, twice}, {values, twice}}) == "");
  // Every head after itself.
  const Edit each = [](Span b, size_t row, std::mt19937&) {
    for (size_t at = 0; at < b.size(); at += 256 * row)
      std::copy_n(b.begin() + static_cast<std::ptrdiff_t>(at), 128 * row,
                  b.begin() + static_cast<std::ptrdiff_t>(at + 128 * row));
  };
  CHECK(lines("bf16", {{keys, each}}) == "");
}

TEST_CASE("lost parts: one scale for all rows though each was quantized by its own") {
  Model m = sound(true);
  set_scales(m, kUp, [](size_t) { return 2e-4f; });
  check_found(m.lines(), "copied-scale", kUp);
  // Under one scale for all rows, the largest one reaches 448, or many are cut off.
  for (const float largest : {448.0f, 900.0f}) {
    CAPTURE(largest);
    Model other = sound(true);
    const TensorData scales = other.save.at(kUp + "_scale");
    TensorData& t = other.save.at(kUp);
    float most = 0;
    for (size_t r = 0; r < kInner; ++r) {
      float scale = 0;
      std::memcpy(&scale, &scales.bytes[4 * r], 4);
      most = std::max(most, scale);
    }
    for (size_t i = 0; i < t.bytes.size(); ++i) {
      float scale = 0;
      std::memcpy(&scale, &scales.bytes[4 * (i / kHidden)], 4);
      const float x = e4m3_to_float(t.bytes[i]) * scale / most * (largest / 448);
      t.bytes[i] = e4m3_from_float(std::clamp(x, -448.0f, 448.0f));
    }
    set_scales(other, kUp, [&](size_t) { return most * 448 / largest; });
    CHECK(other.lines() == "");
  }
}

}  // namespace lost_parts_test
