#include <doctest/doctest.h>
#include <omp.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "lib/run/decoder/decoder.h"
#include "tests/support/message.h"
#include "tests/support/models/decoder_golden.h"
#include "tests/support/models/pieces.h"
#include "tests/support/scratch.h"

// Nemotron-H: any pieces of a text, stages, names of files, and configs.

namespace twofour {
namespace {

constexpr const char* kOneBlocks[] = {"nemotron_h", "nemotron_h-steps"};

DecoderGolden one_block_golden(const std::string& name = "nemotron_h") {
  return read_decoder_golden(std::filesystem::path(TWOFOUR_GOLDEN_DIR) / "decoder", name);
}

/// The text of a config, in which a string behind = is the JSON that it holds: numbers that are not finite.
std::string text_of(const Json& config) {
  std::string text = config.dump();
  for (size_t at = text.find("\"="); at != text.npos; at = text.find("\"=")) {
    text.erase(text.find('"', at + 2), 1);
    text.erase(at, 2);
  }
  return text;
}

std::string one_block_refusal(const DecoderGolden& golden, const Json& config) {
  const Scratch scratch;
  write_decoder_checkpoint(golden, scratch / "model", text_of(config));
  return message_of([&] { Decoder::open(scratch / "model"); });
}

std::vector<int32_t> squares_of(int count) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < count; ++i) tokens.push_back((i * i + i / 3) % 48);
  return tokens;
}

double worst_of_logits(std::span<const float> found, std::span<const float> expected) {
  double worst = 0;
  for (size_t i = 0; i < expected.size(); i += 48)
    worst = std::max(worst, relative_error(found.subspan(i, 48), expected.subspan(i, 48)));
  return worst;
}

TEST_CASE("a prompt of Mamba-2 in any pieces says what single tokens say") {
  const std::vector<int32_t> tokens = squares_of(150);
  for (const char* name : kOneBlocks) {
    CAPTURE(name);
    const Scratch scratch;
    write_decoder_checkpoint(one_block_golden(name), scratch / "model");
    const Decoder decoder = Decoder::open(scratch / "model");
    for (const std::vector<size_t>& pieces : {std::vector<size_t>(150, 1),
                                              {63, 1, 1, 85},
                                              {64, 64, 22},
                                              {65, 2, 3, 80},
                                              {1, 2, 147},
                                              {129, 21}}) {
      const std::vector<float> whole = DecoderSequence(decoder).append(tokens, true);
      const std::vector<float> logits = logits_in_pieces(decoder, tokens, pieces);
      CHECK(worst_of_logits(logits, whole) <= 2e-5);
    }
  }
}

TEST_CASE("Mamba-2 has the same floats for any number of threads, and sequences of a batch are apart") {
  const int before = omp_get_max_threads();
  const Scratch scratch;
  const DecoderGolden golden = one_block_golden();
  write_decoder_checkpoint(golden, scratch / "model");
  const Decoder decoder = Decoder::open(scratch / "model");
  omp_set_num_threads(1);
  const std::vector<float> one = DecoderSequence(decoder).append(golden.tokens, true);
  omp_set_num_threads(3);
  CHECK(DecoderSequence(decoder).append(golden.tokens, true) == one);
  omp_set_num_threads(before);
  const std::vector<int32_t> tokens = squares_of(90);
  std::vector<float> hidden(tokens.size() * 32);
  decoder.embed(tokens, hidden);
  std::vector<float> second(hidden.begin() + 70 * 32, hidden.end());
  const SequencePart parts[] = {{70, 0, nullptr}, {20, 0, nullptr}}, alone{20, 0, nullptr};
  for (int64_t layer = 0; layer < decoder.shape().layers; ++layer) {
    decoder.run_layer(layer, parts, hidden);
    decoder.run_layer(layer, {&alone, 1}, second);
  }
  CHECK(relative_error(std::span(hidden).last(second.size()), second) <= 1e-5);
}

/// The config as the files of NVIDIA have it.
Json published_config(const DecoderGolden& golden, const char* pattern) {
  Json config = golden.config;
  config.erase("layers_block_type");
  config["hybrid_override_pattern"] = pattern;
  config["time_step_limit"] = "=[0.0, Infinity]";
  return config;
}

TEST_CASE(
    "a pattern, with or without a count of layers, and names of transformers' modules are the same model") {
  const DecoderGolden golden = one_block_golden();
  Json counted = published_config(golden, "ME*-M");
  counted["num_hidden_layers"] = 5;
  for (const Json& config : {published_config(golden, "ME*-M"), counted, golden.config}) {
    const Scratch scratch;
    write_decoder_checkpoint(golden, scratch / "model", text_of(config), [&](Tensors& tensors) {
      if (config != counted) return;
      for (TensorData& t : tensors) {
        if (t.name.starts_with("backbone.")) t.name = "model." + t.name.substr(9);
      }
    });
    const Decoder decoder = Decoder::open(scratch / "model");
    CHECK(worst_error(golden, DecoderSequence(decoder).append(golden.tokens, true)) <= 2e-4);
  }
}

TEST_CASE("every setting of Nemotron-H changes what it says") {
  for (const auto& [name, key, value] : std::vector<std::tuple<const char*, const char*, Json>>{
           {"nemotron_h", "layer_norm_epsilon", 1e-1},
           {"nemotron_h", "time_step_min", 1.0},
           {"nemotron_h", "routed_scaling_factor", 1.0},
           {"nemotron_h", "norm_topk_prob", false},
           {"nemotron_h", "topk_group", 4},
           {"nemotron_h-steps", "time_step_min", 0.001},
           {"nemotron_h-steps", "norm_topk_prob", true}}) {
    CAPTURE(key);
    DecoderGolden golden = one_block_golden(name);
    golden.config[key] = value;
    const Scratch scratch;
    write_decoder_checkpoint(golden, scratch / "model");
    const Decoder decoder = Decoder::open(scratch / "model");
    CHECK(worst_error(golden, DecoderSequence(decoder).append(golden.tokens, true)) > 1e-3);
  }
}

TEST_CASE("stages of experts with projections before and behind them see their inputs in order") {
  const Scratch scratch;
  write_decoder_checkpoint(one_block_golden(), scratch / "model");
  const Decoder decoder = Decoder::open(scratch / "model");
  const std::vector<InputGroup>& groups = decoder.input_groups(1);
  CHECK(groups.front().linears == std::vector<std::string>{"backbone.layers.1.mixer.gate",
                                                           "backbone.layers.1.mixer.shared_experts.up_proj",
                                                           "backbone.layers.1.mixer.fc1_latent_proj"});
  CHECK(groups.back().linears == std::vector<std::string>{"backbone.layers.1.mixer.fc2_latent_proj"});
  CHECK(groups.back().adds);
  struct Seen : LayerWatcher {
    std::map<size_t, std::vector<float>> inputs;
    void see_input(size_t group, std::span<const float> x, std::span<const int64_t>) override {
      inputs[group] = {x.begin(), x.end()};
    }
    void see_expert(int64_t, double) override {}
  };
  const auto run = [&](std::optional<LayerStage> last) {
    Seen seen;
    std::vector<float> hidden(1 * 32, 0.5f), before = hidden;
    const SequencePart part{1, 0, nullptr};
    decoder.run_half(1, LayerHalf::kFeedForward, {&part, 1}, hidden, {.watcher = &seen, .last = last});
    CHECK((hidden == before) == last.has_value());
    return seen.inputs;
  };
  const auto all = run({});
  CHECK(all.size() == groups.size() - 8 + 3);  // three of eight experts
  for (const LayerStage last : {LayerStage::kFeedForwardInput, LayerStage::kExpertInput, LayerStage::kDown,
                                LayerStage::kExpertOutput}) {
    const auto some = run(last);
    for (size_t g = 0; g < groups.size(); ++g) {
      if (groups[g].stage == last && all.contains(g)) CHECK(some.contains(g));
      if (groups[g].stage > last) CHECK_FALSE(some.contains(g));
      if (some.contains(g)) CHECK(some.at(g) == all.at(g));
    }
  }
  // A layer has one half; the other one changes nothing.
  Seen seen;
  std::vector<float> hidden(32, 0.5f), before = hidden;
  const SequencePart part{1, 0, nullptr};
  decoder.run_half(1, LayerHalf::kAttention, {&part, 1}, hidden, {.watcher = &seen});
  decoder.run_half(0, LayerHalf::kFeedForward, {&part, 1}, hidden, {.watcher = &seen});
  CHECK(hidden == before);
  CHECK(seen.inputs.empty());
}

TEST_CASE("states of Mamba-2 are counted, and its family runs on the CPU") {
  const Scratch scratch;
  write_decoder_checkpoint(one_block_golden(), scratch / "model");
  const Decoder decoder = Decoder::open(scratch / "model");
  CHECK(decoder.cache_bytes_per_token() == 4 * 2 * 2 * 16);  // keys and values of one layer with 2 heads
  // Two layers: 3 tokens of 96 + 2 * 2 * 8 channels, and 8 heads of 8 x 12
  CHECK(decoder.state_bytes() == 4 * 2 * (3 * 128 + 8 * 8 * 12));
  if (decoder.device() == Device::cpu)
    contains(message_of([&] { Decoder::open(scratch / "model").use_cuda(); }),
             "model_type: expected a family that runs on CUDA, found nemotron_h, which runs on the CPU");
}

TEST_CASE("hostile configs of Nemotron-H are refused by name") {
  const DecoderGolden golden = one_block_golden();
  const auto refused = [&](const char* key, const Json& value, const std::string& expected) {
    CAPTURE(key);
    Json config = golden.config;
    config["num_hidden_layers"] = 5;
    config[key] = value;
    contains(one_block_refusal(golden, config), std::string(key) + ": expected " + expected);
  };
  const std::string list = "linear_attention, full_attention, moe or mlp for each of ";
  refused("layers_block_type", "ME*-M", list);
  refused("layers_block_type", {"mamba", "moe", 3, "mlp", "mamba"}, list + "5 layers");
  refused("layers_block_type", {"mamba", "moe", "sliding_attention", "mlp", "mamba"}, list + "5 layers");
  refused("layers_block_type", Json::array(), list + "5 layers, found []");
  Json fewer = golden.config;
  fewer["num_hidden_layers"] = 4;
  contains(one_block_refusal(golden, fewer), "layers_block_type: expected " + list + "4 layers");
  refused("hybrid_override_pattern", "MM*-M", "ME*-M, the kinds of layers_block_type");
  for (const char* pattern : {"ME*X-", "ME*-MM", ""}) {
    Json config = published_config(golden, pattern);
    config["num_hidden_layers"] = 5;
    contains(one_block_refusal(golden, config),
             "hybrid_override_pattern: expected M, *, E or - for each of 5 layers");
  }
  Json kindless = golden.config;
  kindless.erase("layers_block_type");
  contains(one_block_refusal(golden, kindless), "num_hidden_layers: expected a whole number above 0");
  for (const Json& limit : {Json({0.001, 0.1}), Json({0.0, 0.1}), Json(0.0), Json("=[0.0, -Infinity]"),
                            Json("=[0.0, NaN]"), Json({0.0, "much"})})
    refused("time_step_limit", limit, "[0, Infinity], no limit but time_step_min");
  refused("time_step_min", -0.5, "a finite number not below 0");
  refused("mamba_hidden_act", "gelu", "silu");
  refused("mlp_hidden_act", "silu", "relu2");
  refused("attention_bias", true, "false");
  refused("sliding_window", 9, "null");
  refused("n_groups", 3, "a divisor of the 8 heads, found 3");
  refused("mamba_n_groups", 2, "none, but n_groups");
  refused("num_key_value_heads", 3, "a divisor of the 4 heads, found 3");
  refused("n_group", 3, "groups of 2 or more of the 8 experts");
  refused("num_experts_per_tok", 9, "at most the 8 experts");
  for (const char* key : {"mamba_num_heads", "mamba_head_dim", "ssm_state_size", "conv_kernel", "n_groups",
                          "head_dim", "num_attention_heads", "intermediate_size", "moe_intermediate_size",
                          "moe_latent_size", "moe_shared_expert_intermediate_size"}) {
    refused(key, 0, "a whole number above 0, found 0");
    refused(key, -1, "a whole number above 0, found -1");
    refused(key, int64_t{1} << 39, "at most ");
  }
  Json wide = golden.config;
  wide["mamba_num_heads"] = 1 << 16, wide["mamba_head_dim"] = 1 << 16;
  contains(one_block_refusal(golden, wide), "mamba_num_heads: expected heads with states of at most");
}

TEST_CASE("weights that Nemotron-H does not have, and weights that its config promises, are named") {
  DecoderGolden golden = one_block_golden();
  golden.tensors["backbone.layers.3.mixer.gate_proj.weight"] = Json(std::vector<int64_t>{48, 32});
  contains(one_block_refusal(golden, golden.config),
           "gate_proj.weight: expected no such weight in a model of this");
  golden = one_block_golden("nemotron_h-steps");
  golden.config["use_conv_bias"] = true;
  contains(one_block_refusal(golden, golden.config), "expected backbone.layers.1.mixer.conv1d.bias [");
  golden.config["use_conv_bias"] = false, golden.config["use_bias"] = true;
  contains(one_block_refusal(golden, golden.config),
           "backbone.layers.1.mixer.in_proj: expected a bias, found none");
}

}  // namespace
}  // namespace twofour
