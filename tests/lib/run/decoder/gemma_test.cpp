#include <doctest/doctest.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "lib/run/decoder/decoder.h"
#include "tests/support/message.h"
#include "tests/support/models/decoder_golden.h"
#include "tests/support/scratch.h"

namespace twofour {
namespace {

DecoderGolden gemma_golden(const std::string& name) {
  return read_decoder_golden(std::filesystem::path(TWOFOUR_GOLDEN_DIR) / "decoder", name);
}

/// The largest error of a golden model under another config; a message if it is refused.
std::pair<double, std::string> under_config(const DecoderGolden& golden, const Json& config) {
  const Scratch scratch;
  write_decoder_checkpoint(golden, scratch / "model", config.dump());
  double error = INFINITY;
  const std::string message = message_of([&] {
    const Decoder decoder = Decoder::open(scratch / "model");
    error = worst_error(golden, DecoderSequence(decoder).append(golden.tokens, true));
  });
  return {error, message};
}

/// The config as earlier versions of transformers wrote it.
Json earlier_config(const DecoderGolden& golden) {
  Json config = golden.config;
  const Json ropes = config["rope_parameters"];
  for (const char* key : {"rope_parameters", "layer_types", "_sliding_window_pattern"}) config.erase(key);
  config["rope_theta"] = ropes["full_attention"]["rope_theta"];
  config["rope_local_base_freq"] = ropes["sliding_attention"]["rope_theta"];
  if (ropes["full_attention"]["rope_type"] != "default")
    config["rope_scaling"] = {{"rope_type", ropes["full_attention"]["rope_type"]},
                              {"factor", ropes["full_attention"]["factor"]}};
  return config;
}

TEST_CASE("Gemma's ropes and windows are those of earlier configs, too, and every setting counts") {
  for (const char* name : {"gemma3", "gemma3-linear"}) {
    CAPTURE(name);
    const DecoderGolden golden = gemma_golden(name);
    const Json config = earlier_config(golden);
    CHECK(under_config(golden, config).first <= 2e-4);
    for (const auto& [key, value] :
         std::vector<std::pair<std::string, Json>>{{"rope_theta", 300.0},
                                                   {"rope_local_base_freq", 300.0},
                                                   {"rope_scaling", {{"type", "linear"}, {"factor", 9.0}}},
                                                   {"sliding_window_pattern", 1},
                                                   {"sliding_window", 8},
                                                   {"query_pre_attn_scalar", 16},
                                                   {"rms_norm_eps", 1e-2}}) {
      CAPTURE(key);
      Json other = config;
      other[key] = value;
      const auto [error, message] = under_config(golden, other);
      CHECK(message.empty());
      CHECK(error > 1e-3);
    }
  }
}

TEST_CASE("Gemma's MLP is gelu between norms, as in double") {
  const DecoderGolden golden = gemma_golden("gemma3-linear");
  const Scratch scratch;
  write_decoder_checkpoint(golden, scratch / "model");
  const Decoder decoder = Decoder::open(scratch / "model");
  const auto weights = [&](const std::string& name) {
    std::vector<int64_t> shape;
    const std::string full = "model.layers.1." + name + ".weight";
    for (const Json& n : golden.tensors[full]) shape.push_back(n.get<int64_t>());
    const std::vector<float> w = golden_weights(full, shape, true);
    return std::vector<double>(w.begin(), w.end());
  };
  const auto norm = [&](std::vector<double> x, const std::string& name) {
    const std::vector<double> w = weights(name);
    double sum = 0;
    for (const double v : x) sum += v * v;
    for (size_t i = 0; i < x.size(); ++i)
      x[i] *= (1 + w[i]) / std::sqrt(sum / static_cast<double>(x.size()) + 1e-6);
    return x;
  };
  const auto product = [&](const std::vector<double>& x, const std::string& name) {
    const std::vector<double> w = weights(name);
    std::vector<double> out(w.size() / x.size());
    for (size_t i = 0; i < w.size(); ++i) out[i / x.size()] += w[i] * x[i % x.size()];
    return out;
  };
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::vector<float> hidden(32);
  for (float& h : hidden) h = normal(random);
  std::vector<double> before(hidden.begin(), hidden.end());
  const std::vector<double> x = norm(before, "pre_feedforward_layernorm");
  std::vector<double> gate = product(x, "mlp.gate_proj");
  const std::vector<double> up = product(x, "mlp.up_proj");
  for (size_t i = 0; i < gate.size(); ++i) {
    const double g = gate[i];
    gate[i] = g / 2 * (1 + std::tanh(std::sqrt(2 / 3.14159265358979) * (g + 0.044715 * g * g * g))) * up[i];
  }
  const std::vector<double> out = norm(product(gate, "mlp.down_proj"), "post_feedforward_layernorm");
  decoder.run_half(1, LayerHalf::kFeedForward, {}, hidden, {});
  for (size_t i = 0; i < out.size(); ++i)
    CHECK(static_cast<double>(hidden[i]) == doctest::Approx(before[i] + out[i]).epsilon(1e-5));
  // Norms behind the halves change their outputs.
  for (const InputGroup& group : decoder.input_groups(1)) CHECK_FALSE(group.adds);
}

TEST_CASE("what Gemma cannot have is refused by name") {
  const DecoderGolden golden = gemma_golden("gemma3");
  const auto refused = [&](const char* key, const Json& value, const std::string& expected) {
    CAPTURE(key);
    Json config = golden.config;
    config[key] = value;
    contains(under_config(golden, config).second, std::string(key) + ": expected " + expected);
  };
  refused("hidden_activation", "gelu", "gelu_pytorch_tanh, found \"gelu\"");
  refused("final_logit_softcapping", 30.0, "null, found 30.0");
  refused("attn_logit_softcapping", 50.0, "null, found 50.0");
  refused("use_bidirectional_attention", true, "false, found true");
  refused("query_pre_attn_scalar", 0, "a finite number above 0, found 0");
  refused("sliding_window", 0, "a whole number above 0, found 0");
  refused("layer_types", std::vector<std::string>(3, "linear_attention"),
          "sliding_attention or full_attention");
  refused("rope_parameters", {{"rope_type", "default"}}, "an object for full_attention and one for sliding");
  Json config = golden.config;
  config["rope_parameters"]["full_attention"]["rope_theta"] = 0.5;
  contains(under_config(golden, config).second,
           "rope_parameters.full_attention.rope_theta: expected a number above 1");
  config = golden.config;
  config.erase("layer_types");
  config["sliding_window_pattern"] = 0;
  contains(under_config(golden, config).second,
           "sliding_window_pattern: expected a whole number above 0, found 0");
}

}  // namespace
}  // namespace twofour
