#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>

#include "lib/synth/synth.h"
#include "tests/support/faults/large_model.h"
#include "tests/support/faults/lint_changed.h"

// Biases, decays, norms, zero points and tables of experts, which are vectors or small: what fires, and what
// looks alike and must not.

namespace lint_vectors_test {

using namespace twofour;
using namespace twofour::spoil;
using enum Base;

namespace {

std::string lines(Base base, const Change& change) { return lines_of(lint_changed(base, change)); }

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// The findings of lint in a small model of synth with a change.
std::string lines(const std::string& shape, const std::string& dialect, const Change& change) {
  const Scratch scratch;
  SynthOptions options;
  options.shape = shape;
  options.dialect = dialect;
  options.layers = 4;
  options.small = true;
  Progress progress;
  synth(scratch / "sound", options, progress);
  Save save = load_save(scratch / "sound");
  std::mt19937 random(1);
  if (change) change(save, random);
  write_save(save, scratch / "changed");
  return lines_of(lint(scratch / "changed", {}, progress));
}

/// Sets one number of a BF16 tensor.
Change set_bf16(std::string name, size_t at, uint16_t bits) {
  return edit_tensors(std::move(name), [=](TensorData& t) { std::memcpy(&t.bytes[2 * at], &bits, 2); });
}

}  // namespace

TEST_CASE("biases: one expert's beyond all, zeros in one layer, a router's copied") {
  const std::string down = "model.layers.1.mlp.experts.down_proj_bias";
  CHECK(has(lines(kGptOss, set_bf16(down, 200, 0x4892)), "outlier-weight: " + down));  // 2.99e5
  CHECK(has(lines("gpt-oss", "released", set_floats("model.layers.2.self_attn.q_proj.bias", 0)),
            "layer-outlier: model.layers.2.self_attn.q_proj.bias"));
  CHECK(lines("gpt-oss", "released", set_floats("model.layers.*.self_attn.q_proj.bias", 0)) == "");
  CHECK(
      has(lines(kDeepSeek, copy_bytes("model.layers.3.mlp.gate.e_score", "model.layers.4.mlp.gate.e_score")),
          "identical-weights: model.layers.4.mlp.gate.e_score_correction_bias"));
}

TEST_CASE("A_log: an exponent, and a float") {
  CHECK(has(lines(kNemotron, set_floats("backbone.layers.0.mixer.A_log", 1e4f)),
            "implausible-weights: backbone.layers.0.mixer.A_log"));
  CHECK(has(lines(kNemotron, edit_tensors("backbone.layers.0.mixer.A_log",
                                          [](TensorData& t) { t.dtype = DType::kI32; })),
            "tensor-type: backbone.layers.0.mixer.A_log"));
}

TEST_CASE("zero points of AWQ that are 0 everywhere") {
  CHECK(lines("llama", "awq", {}) == "");
  CHECK(has(lines("llama", "awq",
                  map_bytes("model.layers.*.qzeros", [](uint8_t, size_t, auto&) { return uint8_t{0}; })),
            "no weight is negative"));
}

TEST_CASE("tables of experts: zeros in one of several") {
  const auto tables = [](int zeros) {
    return [=](Save& s, std::mt19937& random) {
      set_key("num_hash_layers", 2)(s, random);
      set_key("mlp_layer_types", Json::array({"hash_moe", "hash_moe", "moe", "moe"}))(s, random);
      for (int layer = 0; layer < 2; ++layer) {
        s.erase("layers." + std::to_string(layer) + ".ffn.gate.bias");
        TensorData t{"layers." + std::to_string(layer) + ".ffn.gate.tid2eid", DType::kI64, {1024, 2}, {}};
        for (int64_t i = 0; i < 2048; ++i) {
          const int64_t id = layer < zeros ? 0 : i % 2 == 0 ? i / 2 % 7 : 7;
          const auto* bytes = reinterpret_cast<const uint8_t*>(&id);
          t.bytes.insert(t.bytes.end(), bytes, bytes + 8);
        }
        s.add(t);
      }
    };
  };
  CHECK(has(lines("deepseek-v4", "modelopt", tables(1)), "odd-codes: layers.0.ffn.gate.tid2eid"));
  CHECK_FALSE(has(lines("deepseek-v4", "modelopt", tables(2)), "odd-codes"));
}

TEST_CASE("an expert that was never drawn is as it was initialized; a scale that is wrong keeps the rows") {
  // Rows of the others differ by a third.
  const auto rows = [](int expert, float size, bool flat) {
    return map_rows("model.layers.1.mlp.experts." + std::to_string(expert) + ".*proj.weight",
                    [=](int64_t row, uint8_t* bytes, size_t count) {
                      std::mt19937 random(static_cast<unsigned>(row * 64 + expert + (bytes[0] << 16)));
                      std::normal_distribution<float> normal;
                      const float height = flat ? size : size * std::exp(0.35f * normal(random));
                      for (size_t i = 0; i < count; i += 2) {
                        const float x = height * normal(random);
                        uint32_t bits = 0;
                        std::memcpy(&bits, &x, 4);
                        bytes[i] = static_cast<uint8_t>(bits >> 16);
                        bytes[i + 1] = static_cast<uint8_t>(bits >> 24);
                      }
                    });
  };
  const auto model = [&](float size, bool flat) {
    std::vector<Change> changes;
    for (const char* matrix : {"gate", "up", "down"}) {
      for (int e = 0; e < 16; ++e) {
        const std::string module = "model.layers.1.mlp.experts." + std::to_string(e) + "." + matrix + "_proj";
        changes.push_back(dequantize(module));
        changes.push_back(ignore_also({module}));
      }
    }
    for (int e = 0; e < 16; ++e) changes.push_back(rows(e, e == 5 ? size : 0.02f, e == 5 && flat));
    return lines(kMoe, all_of(std::move(changes)));
  };
  CHECK_FALSE(has(model(0.0088f, true), "expert-outlier"));
  CHECK(has(model(0.0088f, false), "expert-outlier: model.layers.1.mlp.experts.5."));
  CHECK(has(model(0.2f, true), "expert-outlier: model.layers.1.mlp.experts.5."));
}

TEST_CASE("one block scale of FP8 times 1000") {
  const std::string down = "model.layers.1.mlp.down_proj";
  CHECK(has(lines(kDeepSeek, edit_tensors(down + ".weight_scale_inv",
                                          [](TensorData& t) {
                                            float scale = 0;
                                            std::memcpy(&scale, &t.bytes[4], 4);
                                            scale *= 1000;
                                            std::memcpy(&t.bytes[4], &scale, 4);
                                          })),
            "suspicious-scale: " + down));
}

TEST_CASE("block scales times the global scale in all modules, and scales too far apart to be folded") {
  const std::string all = lines(kLlama, [](Save& s, std::mt19937&) {
    for (TensorData* t : tensors(s, "*.weight_scale_2")) {
      float scale = 0;
      std::memcpy(&scale, t->bytes.data(), 4);
      scale *= scale;
      std::memcpy(t->bytes.data(), &scale, 4);
    }
  });
  CHECK(std::ranges::count(all, '\n') == 1);
  CHECK(has(all, "implausible-weights: model.layers.0."));
  CHECK(has(all, "multiplied by it twice"));
  const Change far =
      map_floats("model.layers.1.mlp.up_proj.weight_scale_2", [](float x) { return 15060 * x; });
  CHECK(has(lines(kLlama, far), "too far apart to be folded"));
}

}  // namespace lint_vectors_test
