#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>

#include "formats/half.h"
#include "tests/support/checkpoint_builder.h"
#include "tests/support/faults/lint_changed.h"

// INT4 of AWQ in matrices of real size; experts that only pad; settings of generation.

namespace lint_integers_test {

using namespace twofour;

namespace {

constexpr size_t kHidden = 1024, kInner = 2048, kGroup = 128, kPack = 8;
constexpr std::array<size_t, kPack> kOrder = {0, 2, 4, 6, 1, 3, 5, 7};
constexpr const char* kConfig = R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama",
  "hidden_size": 1024, "intermediate_size": 2048, "num_hidden_layers": 2, "num_attention_heads": 8,
  "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 1024, "tie_word_embeddings": false,
  "hidden_act": "silu", "max_position_embeddings": 4096, "rms_norm_eps": 1e-05, "rope_theta": 10000.0,
  "torch_dtype": "float16", "quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128,
  "zero_point": true, "version": "gemm", "modules_to_not_convert": null}})";

/// Codes and zero points of one linear [K, N], and its scales.
struct Awq {
  size_t n = 0, k = 0;
  std::vector<uint8_t> codes{}, zeros{};  ///< [K, N], [K / group, N]
  std::vector<float> scales{};            ///< [K / group, N]
};

Awq random_awq(size_t n, size_t k, std::mt19937_64& random) {
  std::normal_distribution<float> normal;
  Awq a{n, k, std::vector<uint8_t>(k * n), std::vector<uint8_t>(k / kGroup * n),
        std::vector<float>(k / kGroup * n)};
  std::vector<float> rows(n), column(kGroup);
  for (float& row : rows) row = 0.02f * std::exp(0.25f * normal(random));
  for (size_t g = 0; g < k / kGroup; ++g) {
    for (size_t i = 0; i < n; ++i) {
      float low = 0, high = 0;
      for (float& w : column) {
        const float x = normal(random);
        w = rows[i] * x * (0.8f + 0.1f * x * x);
        low = std::min(low, w);
        high = std::max(high, w);
      }
      const float scale = fp16_to_float(fp16_from_float((high - low) / 15)), zero = std::round(-low / scale);
      a.scales[g * n + i] = scale;
      a.zeros[g * n + i] = static_cast<uint8_t>(std::clamp(zero, 0.0f, 15.0f));
      for (size_t j = 0; j < kGroup; ++j)
        a.codes[(g * kGroup + j) * n + i] =
            static_cast<uint8_t>(std::clamp(std::round(column[j] / scale) + zero, 0.0f, 15.0f));
    }
  }
  return a;
}

std::vector<uint8_t> packed(const std::vector<uint8_t>& codes, bool in_order) {
  std::vector<uint8_t> bytes(codes.size() / 2);
  for (size_t i = 0; i < codes.size(); ++i) {
    const uint8_t code = codes[i / kPack * kPack + (in_order ? i % kPack : kOrder[i % kPack])];
    bytes[i / 2] = static_cast<uint8_t>(bytes[i / 2] | code << (4 * (i % 2)));
  }
  return bytes;
}

using Change = std::function<void(std::map<std::string, Awq>&)>;
const std::string kUp = "model.layers.1.mlp.up_proj", kDown = "model.layers.1.mlp.down_proj";

/// All findings above a note of a changed model. `in_order` packs the codes of kUp without AWQ's order.
std::string lines(const Change& change, bool in_order = false) {
  static const std::map<std::string, Awq> sound = [] {
    std::map<std::string, Awq> modules;
    std::mt19937_64 random(5);
    for (int layer = 0; layer < 2; ++layer) {
      const std::string at = fmt::format("model.layers.{}.", layer);
      for (const char* name : {"q", "k", "v", "o"})
        modules[fmt::format("{}self_attn.{}_proj", at, name)] = random_awq(kHidden, kHidden, random);
      for (const char* name : {"gate", "up"})
        modules[fmt::format("{}mlp.{}_proj", at, name)] = random_awq(kInner, kHidden, random);
      modules[at + "mlp.down_proj"] = random_awq(kHidden, kInner, random);
    }
    return modules;
  }();
  std::map<std::string, Awq> modules = sound;
  if (change) change(modules);
  Tensors t;
  for (const auto& [name, a] : modules) {
    const auto n = static_cast<int64_t>(a.n), k = static_cast<int64_t>(a.k),
               g = k / static_cast<int64_t>(kGroup);
    std::vector<uint8_t> scales;
    for (const float x : a.scales) {
      const uint16_t half = fp16_from_float(x);
      scales.push_back(static_cast<uint8_t>(half & 0xFF));
      scales.push_back(static_cast<uint8_t>(half >> 8));
    }
    t.push_back({name + ".qweight", DType::kI32, {k, n / 8}, packed(a.codes, in_order && name == kUp)});
    t.push_back({name + ".qzeros", DType::kI32, {g, n / 8}, packed(a.zeros, false)});
    t.push_back({name + ".scales", DType::kF16, {g, n}, std::move(scales)});
  }
  const auto add_halves = [&](const std::string& name, std::vector<int64_t> shape, float mean, float size) {
    std::mt19937_64 random(t.size());
    std::normal_distribution<float> normal(mean, size);
    size_t count = 1;
    for (const int64_t x : shape) count *= static_cast<size_t>(x);
    std::vector<uint8_t> bytes;
    for (size_t i = 0; i < count; ++i) {
      const float x = normal(random);
      const uint16_t half = fp16_from_float(mean > 0 ? std::fabs(x) : x);
      bytes.push_back(static_cast<uint8_t>(half & 0xFF));
      bytes.push_back(static_cast<uint8_t>(half >> 8));
    }
    t.push_back({name, DType::kF16, std::move(shape), std::move(bytes)});
  };
  for (const char* table : {"model.embed_tokens.weight", "lm_head.weight"})
    add_halves(table, {1024, kHidden}, 0, 0.02f);
  add_halves("model.norm.weight", {kHidden}, 1, 0.2f);
  for (int layer = 0; layer < 2; ++layer) {
    for (const char* norm : {"input_layernorm", "post_attention_layernorm"})
      add_halves(fmt::format("model.layers.{}.{}.weight", layer, norm), {kHidden}, 1, 0.2f);
  }
  const Scratch scratch;
  write_checkpoint(scratch / "m", {t}, kConfig);
  Progress progress;
  std::string text;
  for (const LintFinding& f : lint(scratch / "m", {}, progress).findings) {
    if (f.severity != Severity::kNote)
      text += fmt::format("{}: {}: {}\n", lint_rules()[f.rule].id, f.name, f.message);
  }
  return text;
}

void found(const std::string& begins, const std::string& says, const std::string& all) {
  CAPTURE(all);
  CHECK(all.starts_with(begins));
  CHECK(all.find(says) != std::string::npos);
}

unsigned hash(size_t i) { return static_cast<unsigned>((i + 1) * 0x9E3779B97F4A7C15u >> 40); }

}  // namespace

TEST_CASE("AWQ: columns in another order, zero points and codes of others") {
  CHECK(lines({}) == "");
  found("odd-codes: " + kUp, "another order of eight columns", lines({}, true));
  found("odd-codes: " + kUp, "zero points that do not belong", lines([](auto& m) {
          for (uint8_t& z : m[kUp].zeros) z = static_cast<uint8_t>(std::min(15, z + 3));
        }));
  const std::string all =
      lines([](auto& m) { std::swap(m["model.layers.0.mlp.up_proj"].codes, m[kUp].codes); });
  found("odd-codes: model.layers.0.mlp.up_proj", "odd-codes: " + kUp, all);
}

TEST_CASE("AWQ: scales of others") {
  const std::string all = lines([](auto& m) {
    std::vector<float>& scales = m[kUp].scales;
    std::rotate(scales.begin(), scales.begin() + 1, scales.end());
  });
  found("odd-codes: " + kUp, "codes and scales that do not belong together", all);
}

TEST_CASE("AWQ: scales of zero and negative scales") {
  const auto zeros = [](auto& m) {
    for (size_t i = 0; i < 64; ++i) m[kUp].scales[i] = 0;
  };
  found("zero-scale: " + kUp, "found 64 of", lines(zeros));
  // Groups whose codes are all those of zero may have any scale.
  CHECK(lines([&](auto& m) {
          zeros(m);
          Awq& a = m[kUp];
          for (size_t k = 0; k < kGroup; ++k) {
            for (size_t i = 0; i < 64; ++i) a.codes[k * a.n + i] = a.zeros[i];
          }
        }) == "");
  found("suspicious-scale: " + kUp, "negative", lines([](auto& m) {
          for (float& x : m[kUp].scales) x = -x;
        }));
  // Producers that round symmetrically give half of the scales the sign of the largest weight.
  CHECK(lines([](auto& m) {
          for (auto& [name, a] : m) {
            for (size_t i = 0; i < a.scales.size(); ++i)
              if (hash(i) % 2 == 0) a.scales[i] = -a.scales[i];
          }
        }) == "");
}

TEST_CASE("AWQ: a page of noise, of zeros, of one code, or written twice") {
  constexpr size_t kFirst = 200, kRows = 64;  // 64 KiB of 2048 columns
  const auto page = [&](const std::function<uint8_t(const Awq&, size_t)>& code) {
    return lines([&](auto& m) {
      Awq& a = m[kUp];
      for (size_t i = kFirst * a.n; i < (kFirst + kRows) * a.n; ++i) a.codes[i] = code(a, i);
    });
  };
  found("odd-region: " + kUp, "noise",
        page([](const Awq&, size_t i) { return static_cast<uint8_t>(hash(i) % 16); }));
  found("zero-regions: " + kUp, "zeros", page([](const Awq&, size_t) { return uint8_t{0}; }));
  found("odd-region: " + kUp, "repeat FFFF", page([](const Awq&, size_t) { return uint8_t{15}; }));
  found("repeated-rows: " + kUp, "64 of 1024 equal",
        page([](const Awq& a, size_t i) { return a.codes[i - kRows * a.n]; }));
}

TEST_CASE("AWQ: pruned weights, groups of zeros under any scale") {
  for (const unsigned percent : {60u, 95u}) {
    CHECK(lines([=](auto& m) {
            for (auto& [name, a] : m) {
              for (size_t i = 0; i < a.codes.size(); ++i)
                if (hash(i) % 100 < percent) a.codes[i] = a.zeros[i / a.n / kGroup * a.n + i % a.n];
            }
          }) == "");
  }
  const auto zero_groups = [](auto& m, bool codes) {
    Awq& a = m[kUp];
    for (size_t g = 0; g < a.k / kGroup; ++g) {
      for (size_t i = 0; i < a.n; i += 17) {
        a.scales[g * a.n + i] = 1;
        for (size_t j = 0; codes && j < kGroup; ++j)
          a.codes[(g * kGroup + j) * a.n + i] = a.zeros[g * a.n + i];
      }
    }
  };
  CHECK(lines([&](auto& m) { zero_groups(m, true); }) == "");
  CHECK(lines([&](auto& m) { zero_groups(m, false); }).find(kUp) != std::string::npos);
}

TEST_CASE("an expert of zeros pads if its row of the router is zero, too") {
  const std::string block = "model.layers.2.mlp.", expert = block + "experts.15.";
  const auto zero_expert = [&](Save& s, std::mt19937& random) {
    for (const char* name : {"gate_proj", "up_proj", "down_proj"}) {
      spoil::map_bytes(expert + name + ".weight", [](uint8_t, size_t, std::mt19937&) { return uint8_t{0}; })(
          s, random);
      spoil::map_bytes(expert + name + ".weight_scale",
                       [](uint8_t, size_t, std::mt19937&) { return uint8_t{1}; })(s, random);
    }
  };
  const auto zero_row = spoil::map_rows(block + "gate.weight", [](int64_t row, uint8_t* bytes, size_t size) {
    if (row == 15) std::fill_n(bytes, size, uint8_t{0});
  });
  CHECK(rules_of_change(Base::kMoe, [&](Save& s, std::mt19937& random) {
          zero_expert(s, random);
          zero_row(s, random);
        }).empty());
  CHECK(rules_of_change(Base::kMoe, zero_expert).contains("zero-weights"));
  CHECK(rules_of_change(Base::kMoe, zero_row).contains("zero-regions"));
}

TEST_CASE("generation_config.json: numbers that no sampler takes, and those that it does") {
  const auto with = [](const char* key, Json value) {
    return rules_of_change(Base::kLlama, [=](Save& s, std::mt19937&) {
      Json json = s.files.contains("generation_config.json") ? Json::parse(s.files["generation_config.json"])
                                                             : Json::object();
      json["do_sample"] = true;
      json[key] = value;
      s.files["generation_config.json"] = json.dump();
    });
  };
  for (const auto& [key, value] :
       std::initializer_list<std::pair<const char*, Json>>{{"temperature", -0.7},
                                                           {"temperature", "0.7"},
                                                           {"top_p", 95},
                                                           {"top_k", -5},
                                                           {"repetition_penalty", 0.0}}) {
    CAPTURE(std::string(key));
    CHECK_FALSE(with(key, value).empty());
  }
  for (const auto& [key, value] :
       std::initializer_list<std::pair<const char*, Json>>{{"temperature", 1.3},
                                                           {"top_p", 1.0},
                                                           {"top_k", 0},
                                                           {"min_p", 0.05},
                                                           {"repetition_penalty", 1.1}}) {
    CAPTURE(std::string(key));
    CHECK(with(key, value).empty());
  }
}

}  // namespace lint_integers_test
