#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <random>

#include "lib/lint/lint.h"
#include "tests/support/faults/faults.h"
#include "tests/support/scratch.h"

// Vectors of layers, and keys and values, in a model 2048 wide.

namespace lint_layer_vectors_test {

using namespace twofour;

namespace {

constexpr size_t kWidth = 2048, kLayers = 4;
using Numbers = std::vector<float>;

Numbers normals(size_t count, float deviation, uint32_t seed) {
  std::mt19937 random(seed);
  Numbers x(count);
  for (float& v : x) {
    const auto r = static_cast<uint32_t>(random());
    // The sum of four bytes is nearly normal.
    const auto sum = static_cast<float>((r & 255) + (r >> 8 & 255) + (r >> 16 & 255) + (r >> 24));
    v = (sum - 510) / 147.8f * deviation;
  }
  return x;
}

TensorData bf16(const std::string& name, std::vector<int64_t> shape, const Numbers& x) {
  TensorData t{name, DType::kBF16, std::move(shape), std::vector<uint8_t>(2 * x.size())};
  for (size_t i = 0; i < x.size(); ++i) {
    const auto bits = static_cast<uint16_t>((std::bit_cast<uint32_t>(x[i]) + 0x8000u) >> 16);
    std::memcpy(&t.bytes[2 * i], &bits, 2);
  }
  return t;
}

Numbers numbers_of(const TensorData& t) {
  Numbers x(t.bytes.size() / 2);
  for (size_t i = 0; i < x.size(); ++i) {
    uint16_t bits = 0;
    std::memcpy(&bits, &t.bytes[2 * i], 2);
    x[i] = std::bit_cast<float>(uint32_t{bits} << 16);
  }
  return x;
}

/// Sizes around 1, of a deviation of `octaves`.
Numbers sizes(size_t count, float octaves, uint32_t seed) {
  Numbers x = normals(count, octaves, seed);
  for (float& v : x) v = std::exp2(v);
  return x;
}

class Model {
 public:
  /// `octaves`: by how much columns and rows differ alike in all layers; 0: weights are random.
  explicit Model(float octaves) : profile_(sizes(kWidth, octaves, 1)) {
    table("model.embed_tokens.weight", octaves);
    table("lm_head.weight", octaves);
    norm("model.norm.weight");
    for (size_t layer = 0; layer < kLayers; ++layer) {
      const std::string at = fmt::format("model.layers.{}.", layer);
      norm(at + "input_layernorm.weight");
      norm(at + "post_attention_layernorm.weight");
      reader(at + "self_attn.q_proj.weight", 2048, 1, octaves > 0);
      reader(at + "self_attn.k_proj.weight", 256, 1, octaves > 0);
      reader(at + "self_attn.v_proj.weight", 256, 0.6f, false);
      reader(at + "mlp.gate_proj.weight", 512, 1, false);
      reader(at + "mlp.up_proj.weight", 512, 1, false);
      writer(at + "self_attn.o_proj.weight", 2048);
      writer(at + "mlp.down_proj.weight", 512);
    }
    save_.files["config.json"] =
        R"({"architectures":["LlamaForCausalLM"],"model_type":"llama","hidden_size":2048,"intermediate_size":512,
"num_hidden_layers":4,"num_attention_heads":16,"num_key_value_heads":2,"head_dim":128,"vocab_size":512,
"rms_norm_eps":1e-5,"rope_theta":10000.0,"hidden_act":"silu","max_position_embeddings":4096,
"tie_word_embeddings":false,"torch_dtype":"bfloat16"})";
  }

  Save save() const { return save_; }

 private:
  void add(const std::string& name, std::vector<int64_t> shape, const Numbers& x) {
    save_.shards["model.safetensors"].push_back(bf16(name, std::move(shape), x));
  }
  void norm(const std::string& name) {
    Numbers x = normals(kWidth, 0.1f, ++seed_);
    for (float& v : x) v += 1;
    add(name, {kWidth}, x);
  }
  void table(const std::string& name, float octaves) {
    Numbers x = normals(512 * kWidth, 0.02f, ++seed_);
    const Numbers rows = sizes(512, octaves, ++seed_);
    for (size_t i = 0; i < x.size(); ++i) x[i] *= rows[i / kWidth];
    add(name, {512, kWidth}, x);
  }
  void reader(const std::string& name, size_t rows, float size, bool rotary) {
    Numbers x = normals(rows * kWidth, 0.02f * size, ++seed_);
    const Numbers pairs = sizes(64, 0.5f, ++seed_);
    for (size_t i = 0; i < x.size(); ++i)
      x[i] *= profile_[i % kWidth] * (rotary ? pairs[i / kWidth % 64] : 1);
    add(name, {static_cast<int64_t>(rows), kWidth}, x);
  }
  void writer(const std::string& name, size_t columns) {
    Numbers x = normals(kWidth * columns, 0.02f, ++seed_);
    for (size_t i = 0; i < x.size(); ++i) x[i] *= profile_[i / columns];
    add(name, {kWidth, static_cast<int64_t>(columns)}, x);
  }

  Numbers profile_;
  uint32_t seed_ = 100;
  Save save_;
};

std::string findings_of(const Save& save) {
  const Scratch scratch;
  write_save(save, scratch / "model");
  Progress progress;
  std::string text;
  for (const LintFinding& f : lint(scratch / "model", {}, progress).findings) {
    const std::string rule = lint_rules()[f.rule].id;
    if (rule == "layer-outlier" || rule == "odd-numbers") text += fmt::format("{}: {}\n", f.name, f.message);
  }
  return text;
}

const Save& sound() {
  static const Save save = Model(0.5f).save();
  return save;
}

/// Checks that the one finding is about `name` and has `words` in its message.
void found(const std::string& name, const char* words, const std::function<Numbers(const Numbers&)>& change) {
  CAPTURE(name);
  Save save = sound();
  TensorData& t = save.at(name + ".weight");
  t = bf16(t.name, t.shape, change(numbers_of(t)));
  const std::string text = findings_of(save);
  CAPTURE(text);
  CHECK(text.starts_with(name + ": "));
  CHECK(std::count(text.begin(), text.end(), '\n') == 1);
  CHECK(text.find(words) != text.npos);
}

}  // namespace

TEST_CASE("vectors: nothing is found in sound layers") { CHECK(findings_of(sound()).empty()); }

TEST_CASE("vectors: a norm less 1, keys and values exchanged") {
  found("model.layers.1.input_layernorm", "less 1", [](const Numbers& x) {
    Numbers y = x;
    for (float& v : y) v -= 1;
    return y;
  });
  Save save = sound();
  std::swap(save.at("model.layers.1.self_attn.k_proj.weight").bytes,
            save.at("model.layers.1.self_attn.v_proj.weight").bytes);
  CHECK(findings_of(save).find("exchanged") != std::string::npos);
}

TEST_CASE("vectors: decays and taps of one layer") {
  const auto with = [](const std::string& leaf, std::vector<int64_t> shape,
                       const std::function<float(size_t layer, size_t i)>& value) {
    Save save = sound();
    for (size_t layer = 0; layer < kLayers; ++layer) {
      size_t count = 1;
      for (const int64_t n : shape) count *= static_cast<size_t>(n);
      Numbers x(count);
      for (size_t i = 0; i < count; ++i) x[i] = value(layer, i) * (1 + static_cast<float>(layer) / 16);
      save.add(bf16(fmt::format("model.layers.{}.{}", layer, leaf), shape, x));
    }
    return findings_of(save);
  };
  const auto place_of = [](const std::string& text) { return text.substr(0, text.find(": ")); };
  const Numbers some = normals(1024, 1, 7);
  for (const bool spoiled : {false, true}) {
    CAPTURE(spoiled);
    const size_t odd = spoiled ? 1 : kLayers;
    const std::string at = spoiled ? "model.layers.1." : "";
    const std::string decays = with("linear_attn.A_log", {64}, [&](size_t layer, size_t i) {
      const float a = 1 + some[i] / 2;
      return layer == odd ? -std::exp(a) : a;
    });
    CHECK(place_of(decays) == (spoiled ? at + "linear_attn.A_log" : ""));
    const std::string taps = with("linear_attn.conv1d.weight", {256, 1, 4}, [&](size_t layer, size_t i) {
      return some[i] * std::exp2(static_cast<float>(layer == odd ? 3 - i % 4 : i % 4));
    });
    CHECK(place_of(taps) == (spoiled ? at + "linear_attn.conv1d" : ""));
  }
}

}  // namespace lint_layer_vectors_test
