#include <doctest/doctest.h>
#include <omp.h>

#include <string>

#include "lib/run/decoder/decoder.h"
#include "tests/support/message.h"
#include "tests/support/models/decoder_golden.h"
#include "tests/support/models/pieces.h"
#include "tests/support/scratch.h"

namespace twofour {
namespace {

constexpr const char* kHybrids[] = {"qwen3_next",     "qwen3_next-yarn", "qwen3_5",
                                    "qwen3_5-vision", "qwen3_5_moe",     "qwen3_5_moe-vision"};

DecoderGolden hybrid(const std::string& name) {
  return read_decoder_golden(std::filesystem::path(TWOFOUR_GOLDEN_DIR) / "decoder", name);
}

/// The golden config with another value, in the config of the language model.
std::string hybrid_with(const DecoderGolden& golden, const std::string& key, const Json& value) {
  Json config = golden.config;
  (config.contains("text_config") ? config["text_config"] : config)[key] = value;
  return config.dump();
}

std::string hybrid_refusal(const DecoderGolden& golden, const std::string& config) {
  const Scratch scratch;
  write_decoder_checkpoint(golden, scratch / "model", config);
  return message_of([&] { Decoder::open(scratch / "model"); });
}

std::vector<int32_t> some_tokens(int count) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < count; ++i) tokens.push_back((i * i + i / 7) % 48);
  return tokens;
}

/// The largest error of rows of logits [rows, vocabulary], each over its largest logit.
double worst_of_rows(std::span<const float> found, std::span<const float> expected, size_t vocabulary) {
  double worst = 0;
  for (size_t i = 0; i < expected.size(); i += vocabulary)
    worst = std::max(worst, relative_error(found.subspan(i, vocabulary), expected.subspan(i, vocabulary)));
  return worst;
}

TEST_CASE("a prompt in any pieces says what it says as a whole") {
  const std::vector<int32_t> tokens = some_tokens(200);
  for (const char* name : kHybrids) {
    CAPTURE(name);
    const Scratch scratch;
    const DecoderGolden golden = hybrid(name);
    write_decoder_checkpoint(golden, scratch / "model");
    const Decoder decoder = Decoder::open(scratch / "model");
    const std::vector<float> whole = DecoderSequence(decoder).append(tokens, true);
    // Ends of chunks of 64 tokens, pieces shorter than the convolution, and single tokens
    for (const std::vector<size_t>& pieces : {std::vector<size_t>{63, 1, 1, 135},
                                              {64, 64, 72},
                                              {65, 129, 6},
                                              {129, 2, 3, 66},
                                              {1, 2, 197},
                                              {2, 1, 1, 1, 3, 192}}) {
      const std::vector<float> logits = logits_in_pieces(decoder, tokens, pieces);
      // As against transformers: chunks divide sums differently, and small heads magnify that.
      CHECK(worst_of_rows(logits, whole, 48) <= 2e-4);
    }
  }
}

TEST_CASE("prompts that end around a chunk say what single tokens say") {
  for (const char* name : {"qwen3_next", "qwen3_5_moe-vision"}) {
    CAPTURE(name);
    const Scratch scratch;
    const DecoderGolden golden = hybrid(name);
    write_decoder_checkpoint(golden, scratch / "model");
    const Decoder decoder = Decoder::open(scratch / "model");
    const std::vector<int32_t> tokens = some_tokens(130);
    DecoderSequence single(decoder);
    for (size_t i = 0; i < tokens.size(); ++i) {
      const std::vector<float> one = single.append(std::span(tokens).subspan(i, 1));
      const size_t count = i + 1;
      if (count != 2 && count != 63 && count != 64 && count != 65 && count != 129) continue;
      CAPTURE(count);
      DecoderSequence whole(decoder);
      CHECK(relative_error(whole.append(std::span(tokens).first(count)), one) <= 2e-4);
    }
  }
}

TEST_CASE("sequences of a batch do not see each other") {
  const Scratch scratch;
  const DecoderGolden golden = hybrid("qwen3_next");
  write_decoder_checkpoint(golden, scratch / "model");
  const Decoder decoder = Decoder::open(scratch / "model");
  const std::vector<int32_t> tokens = some_tokens(90);
  std::vector<float> hidden(tokens.size() * 32), second;
  decoder.embed(tokens, hidden);
  second.assign(hidden.begin() + 70 * 32, hidden.end());
  const SequencePart parts[] = {{70, 0, nullptr}, {20, 0, nullptr}}, alone{20, 0, nullptr};
  for (int64_t layer = 0; layer < 4; ++layer) {
    decoder.run_layer(layer, parts, hidden);
    decoder.run_layer(layer, {&alone, 1}, second);
  }
  CHECK(relative_error(std::span(hidden).last(second.size()), second) <= 1e-5);
}

TEST_CASE("linear attention has the same floats for any number of threads") {
  const int before = omp_get_max_threads();
  for (const char* name : {"qwen3_next", "qwen3_5"}) {
    CAPTURE(name);
    const Scratch scratch;
    const DecoderGolden golden = hybrid(name);
    write_decoder_checkpoint(golden, scratch / "model");
    const Decoder decoder = Decoder::open(scratch / "model");
    omp_set_num_threads(1);
    const std::vector<float> one = DecoderSequence(decoder).append(golden.tokens, true);
    omp_set_num_threads(3);
    CHECK(DecoderSequence(decoder).append(golden.tokens, true) == one);
    omp_set_num_threads(before);
  }
}

TEST_CASE("every setting of a hybrid changes what it says") {
  struct Change {
    const char *golden, *key, *value;
  };
  for (const Change& change :
       {Change{"qwen3_next", "rms_norm_eps", "0.001"},
        {"qwen3_next", "norm_topk_prob", "false"},
        {"qwen3_next", "partial_rotary_factor", "0.5"},
        {"qwen3_next-yarn", "rope_parameters",
         R"({"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5})"},
        {"qwen3_5", "rope_parameters",
         R"({"rope_type": "default", "rope_theta": 100000.0, "partial_rotary_factor": 0.25})"},
        {"qwen3_5-vision", "rope_parameters",
         R"({"rope_type": "default", "rope_theta": 1000.0, "partial_rotary_factor": 0.5})"}}) {
    CAPTURE(change.golden);
    CAPTURE(change.key);
    const Scratch scratch;
    DecoderGolden golden = hybrid(change.golden);
    if (std::string(change.key) == "partial_rotary_factor") golden.config.erase("rope_parameters");
    write_decoder_checkpoint(golden, scratch / "model",
                             hybrid_with(golden, change.key, parse_json("test", change.value)));
    const Decoder decoder = Decoder::open(scratch / "model");
    CHECK(worst_error(golden, DecoderSequence(decoder).append(golden.tokens, true)) > 1e-3);
  }
}

TEST_CASE("mrope sections do not change the positions of text") {
  const Scratch scratch;
  const DecoderGolden golden = hybrid("qwen3_5");
  Json rope = golden.config["rope_parameters"];
  rope.erase("mrope_section");
  rope.erase("mrope_interleaved");
  write_decoder_checkpoint(golden, scratch / "model", hybrid_with(golden, "rope_parameters", rope));
  const Decoder decoder = Decoder::open(scratch / "model");
  CHECK(worst_error(golden, DecoderSequence(decoder).append(golden.tokens, true)) <= 2e-4);
}

TEST_CASE("a text model inside a vision checkpoint is found under each of its names") {
  const DecoderGolden golden = hybrid("qwen3_5_moe-vision");
  for (const auto& [wrapper, head] :
       {std::pair("model.language_model.", "lm_head"), std::pair("language_model.model.", "lm_head"),
        std::pair("language_model.model.", "language_model.lm_head"), std::pair("model.", "lm_head")}) {
    CAPTURE(wrapper);
    CAPTURE(head);
    const Scratch scratch;
    write_decoder_checkpoint(golden, scratch / "model", {}, [&](Tensors& tensors) {
      constexpr std::string_view kStored = "model.language_model.";
      for (TensorData& t : tensors) {
        if (t.name.starts_with(kStored)) t.name = wrapper + t.name.substr(kStored.size());
        if (t.name == "lm_head.weight") t.name = std::string(head) + ".weight";
      }
    });
    const Decoder decoder = Decoder::open(scratch / "model");
    CHECK(decoder.head_group()->linears == std::vector<std::string>{head});
    CHECK(decoder.input_groups(0).front().linears.front() ==
          std::string(wrapper) + "layers.0.linear_attn.in_proj_qkv");
    CHECK(worst_error(golden, DecoderSequence(decoder).append(golden.tokens, true)) <= 2e-4);
  }
  // The config around the text's says whether the head is the embedding.
  Json config = golden.config;
  config["tie_word_embeddings"] = true;
  contains(hybrid_refusal(golden, config.dump()), "tie_word_embeddings: expected false, because lm_head");
  config["tie_word_embeddings"] = false;
  config["text_config"]["tie_word_embeddings"] = true;
  CHECK(hybrid_refusal(golden, config.dump()).empty());
}

TEST_CASE("states are counted beside keys and values") {
  const Scratch scratch;
  const DecoderGolden golden = hybrid("qwen3_next");
  write_decoder_checkpoint(golden, scratch / "model");
  const Decoder decoder = Decoder::open(scratch / "model");
  // One layer of attention: 2 heads of 16 keys and 16 values. Three of linear attention: 3 inputs of 80
  // channels, and 4 heads of 8 x 12.
  CHECK(decoder.cache_bytes_per_token() == 4 * 2 * 32);
  CHECK(decoder.state_bytes() == 4 * 3 * (3 * 80 + 4 * 8 * 12));
}

TEST_CASE("hostile configs of hybrids are refused by name") {
  for (const char* name : {"qwen3_next", "qwen3_5-vision"}) {
    CAPTURE(name);
    const DecoderGolden golden = hybrid(name);
    const auto refused = [&](const char* key, const Json& value, const std::string& expected) {
      CAPTURE(key);
      contains(hybrid_refusal(golden, hybrid_with(golden, key, value)),
               std::string(key) + ": expected " + expected);
    };
    const std::string above = "a whole number above 0, found ";
    for (const char* key : {"linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim",
                            "linear_value_head_dim", "linear_conv_kernel_dim"}) {
      refused(key, 0, above + "0");
      refused(key, -3, above + "-3");
      refused(key, "x", above + "\"x\"");
      refused(key, int64_t{1} << 39, "at most 65536, found ");
    }
    refused("linear_num_value_heads", 5,
            golden.config.contains("text_config") ? "a multiple of the 3 key heads, found 5"
                                                  : "a multiple of the 2 key heads, found 5");
    const std::string kinds = "4 layers, each linear_attention or full_attention, found ";
    refused("layer_types", {"linear_attention", "full_attention", "linear_attention"}, kinds);
    refused("layer_types", std::vector<std::string>(5, "linear_attention"), kinds);
    refused("layer_types", {"linear_attention", "full_attention", "linear_attention", "mamba"}, kinds);
    refused("layer_types", {"linear_attention", "sliding_attention", "linear_attention", "conv"}, kinds);
    refused("layer_types", {"linear_attention", 1, "linear_attention", "linear_attention"}, kinds);
    refused("layer_types", "linear_attention", kinds);
    refused("hidden_act", "gelu", "silu");
  }
  const DecoderGolden golden = hybrid("qwen3_next");
  Json config = golden.config;
  config["layer_types"] = nullptr;
  config["full_attention_interval"] = 0;
  contains(hybrid_refusal(golden, config.dump()),
           "full_attention_interval: expected a whole number above 0, found 0");
  // Products of sizes that each are possible
  config = golden.config;
  for (const char* key : {"linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim"})
    config[key] = 65536;
  contains(hybrid_refusal(golden, config.dump()),
           "linear_num_value_heads: expected heads with states of at most");
  // Kinds of layers that tensors do not have
  contains(hybrid_refusal(golden,
                          hybrid_with(golden, "layer_types", std::vector<std::string>(4, "full_attention"))),
           "expected model.layers.0.self_attn.o_proj [32, 64], found none");
  contains(hybrid_refusal(golden, hybrid_with(golden, "linear_conv_kernel_dim", 5)),
           "conv1d.weight: expected floats [80, 1, 5], found BF16 [80, 1, 4]");
}

TEST_CASE("a weight that linear attention does not have is refused") {
  DecoderGolden golden = hybrid("qwen3_next");
  golden.tensors["model.layers.0.linear_attn.conv1d.bias"] = Json(std::vector<int64_t>{80});
  contains(hybrid_refusal(golden, golden.config.dump()),
           "conv1d.bias: expected no such weight in a model of this");
}

}  // namespace
}  // namespace twofour
