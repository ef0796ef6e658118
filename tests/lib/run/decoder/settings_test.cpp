#include <doctest/doctest.h>
#include <omp.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "kernels/moe/router.h"
#include "lib/run/decoder/decoder.h"
#include "tests/support/message.h"
#include "tests/support/models/decoder_golden.h"
#include "tests/support/scratch.h"

namespace twofour {
namespace {

DecoderGolden golden_of(const std::string& name) {
  return read_decoder_golden(std::filesystem::path(TWOFOUR_GOLDEN_DIR) / "decoder", name);
}

/// The message of the decoder for a golden model under another config.
std::string refusal(const DecoderGolden& golden, const std::string& config) {
  const Scratch scratch;
  write_decoder_checkpoint(golden, scratch / "model", config);
  return message_of([&] { Decoder::open(scratch / "model"); });
}

std::string with(const DecoderGolden& golden, const std::string& key, const Json& value) {
  Json config = golden.config;
  config[key] = value;
  return config.dump();
}

struct Change {
  const char *golden, *key, *value;
};

TEST_CASE("every setting that tells models apart changes what they say") {
  const Change changes[] = {
      {"llama", "rms_norm_eps", "0.01"},
      {"llama-tied-linear", "rope_parameters",
       R"({"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0})"},
      {"llama-llama3", "rope_parameters", R"({"rope_type": "default", "rope_theta": 10000.0})"},
      {"llama-llama3", "rope_parameters", R"({"rope_type": "default", "rope_theta": 50000.0})"},
      {"mistral-window", "sliding_window", "10"},
      {"mistral-window", "sliding_window", "null"},
      {"mistral-window", "layer_types", R"(["full_attention", "sliding_attention", "full_attention"])"},
      {"llama", "rope_scaling", R"({"rope_type": "linear", "factor": 2.0})"},
      {"qwen2", "rope_parameters", R"({"rope_type": "default", "rope_theta": 10000.0})"},
      {"qwen2-window", "layer_types", R"(["sliding_attention", "full_attention", "full_attention"])"},
      {"qwen2_moe", "norm_topk_prob", "true"},
      {"qwen2_moe", "num_experts_per_tok", "3"},
      {"qwen3_moe", "norm_topk_prob", "false"},
      {"qwen3_moe-window", "use_sliding_window", "false"},
      {"olmoe", "clip_qkv", "null"},
      {"deepseek_v2", "routed_scaling_factor", "1.0"},
      {"deepseek_v2-groups", "topk_method", R"("greedy")"},
      {"deepseek_v2-groups", "topk_group", "3"},
      {"deepseek_v3", "n_group", "2"},
      {"deepseek_v3", "norm_topk_prob", "false"},
      {"deepseek_v3", "rope_interleave", "false"},
      {"deepseek_v3-halves", "norm_topk_prob", "true"},
      {"glm4_moe", "routed_scaling_factor", "1.0"},
      {"gpt_oss", "layer_types", R"(["full_attention", "full_attention", "full_attention"])"},
  };
  for (const Change& change : changes) {
    CAPTURE(change.golden);
    CAPTURE(change.key);
    CAPTURE(change.value);
    const Scratch scratch;
    const DecoderGolden golden = golden_of(change.golden);
    const std::string config = with(golden, change.key, parse_json("test", change.value));
    write_decoder_checkpoint(golden, scratch / "model", config);
    const Decoder decoder = Decoder::open(scratch / "model");
    const std::vector<float> logits = DecoderSequence(decoder).append(golden.tokens, true);
    double largest = 0;
    for (size_t i = 0; i < logits.size(); ++i)
      largest =
          std::max(largest, std::abs(static_cast<double>(logits[i]) - static_cast<double>(golden.logits[i])));
    CHECK(largest > 1e-3);
  }
}

TEST_CASE("settings that loaders read differently are refused") {
  for (const Change& change : {Change{"gpt_oss", "swiglu_limit", "0.5"},
                               {"deepseek_v3", "norm_topk_prob", "null"},
                               {"deepseek_v3", "rope_interleave", "null"},
                               {"qwen2-window", "use_sliding_window", "false"}}) {
    CAPTURE(std::string(change.key));
    const DecoderGolden golden = golden_of(change.golden);
    const std::string message = refusal(golden, with(golden, change.key, parse_json("test", change.value)));
    contains(message, std::string(change.key) + ": expected ");
  }
}

TEST_CASE("deepseek_v2 says the same whatever norm_topk_prob, which transformers ignores there") {
  const DecoderGolden golden = golden_of("deepseek_v2");
  const Scratch scratch;
  write_decoder_checkpoint(golden, scratch / "model", with(golden, "norm_topk_prob", true));
  const Decoder decoder = Decoder::open(scratch / "model");
  const std::vector<float> logits = DecoderSequence(decoder).append(golden.tokens, true);
  const std::span<const float> last = std::span(logits).last(golden.logits.size());
  double largest = 0;
  for (size_t i = 0; i < last.size(); ++i)
    largest =
        std::max(largest, std::abs(static_cast<double>(last[i]) - static_cast<double>(golden.logits[i])));
  CHECK(largest < 1e-4);
}

TEST_CASE("the same floats for any number of threads") {
  const int before = omp_get_max_threads();
  for (const char* name : {"qwen2_moe", "deepseek_v3", "gpt_oss"}) {
    CAPTURE(name);
    const Scratch scratch;
    const DecoderGolden golden = golden_of(name);
    write_decoder_checkpoint(golden, scratch / "model");
    const Decoder decoder = Decoder::open(scratch / "model");
    omp_set_num_threads(1);
    const std::vector<float> one = DecoderSequence(decoder).append(golden.tokens, true);
    omp_set_num_threads(3);
    CHECK(DecoderSequence(decoder).append(golden.tokens, true) == one);
    omp_set_num_threads(before);
  }
}

TEST_CASE("hostile configs are refused by name") {
  const DecoderGolden llama = golden_of("llama"), moe = golden_of("deepseek_v3"),
                      qwen = golden_of("qwen3_moe");
  std::string nan = with(llama, "rope_parameters", {{"rope_type", "linear"}, {"factor", 2.5}});
  nan.replace(nan.find("2.5"), 3, "NaN");
  contains(refusal(llama, with(llama, "num_attention_heads", 0)),
           "num_attention_heads: expected a whole number above 0, found 0");
  contains(refusal(llama, with(llama, "head_dim", 0)), "head_dim: expected a whole number above 0, found 0");
  contains(refusal(llama, with(llama, "num_key_value_heads", 3)),
           "num_key_value_heads: expected a divisor of the 4 heads, found 3");
  contains(refusal(llama, nan), "rope_parameters.factor: expected a finite number above 0, found NaN");
  contains(refusal(llama, with(llama, "vocab_size", 49)),
           "model.embed_tokens.weight: expected model.embed_tokens [49, 32]");
  contains(refusal(llama, with(llama, "rms_norm_eps", -1)),
           "rms_norm_eps: expected a finite number above 0, found -1");
  contains(refusal(llama, with(llama, "num_hidden_layers", 4)),
           "expected model.layers.3.input_layernorm.weight [32], found none");
  contains(refusal(llama, with(llama, "num_hidden_layers", 1 << 30)),
           "num_hidden_layers: expected at most 10000");
  contains(refusal(llama, with(llama, "hidden_act", "gelu")), "hidden_act: expected silu, found \"gelu\"");
  contains(refusal(llama, with(llama, "attention_bias", false)), "expected no bias, found");
  contains(refusal(llama, with(llama, "model_type", "gemma2")),
           "model_type: expected a family that can be run (llama, ");
  contains(refusal(llama, with(llama, "rope_parameters",
                               parse_json("test", R"({"rope_type": "dynamic", "factor": 2.0})"))),
           "rope_parameters.rope_type: expected default, linear, llama3 or yarn, found \"dynamic\"");
  contains(refusal(llama, with(llama, "partial_rotary_factor", 0.5)),
           "partial_rotary_factor: expected 1 for llama, found 0.5");
  CHECK(refusal(llama, with(llama, "partial_rotary_factor", 1.0)).empty());
  contains(refusal(qwen, with(qwen, "num_experts_per_tok", 9)),
           "num_experts_per_tok: expected at most the 8 experts, found 9");
  contains(refusal(moe, with(moe, "n_group", 3)),
           "n_group: expected groups of 2 or more of the 8 experts, found 3");
  contains(refusal(moe, with(moe, "topk_group", 5)), "topk_group: expected at most the 4 groups, found 5");
  contains(refusal(moe, with(moe, "scoring_func", "softmax")),
           "scoring_func: expected sigmoid, found \"softmax\"");
  contains(refusal(moe, with(moe, "n_routed_experts", 16)), "expected 16 experts (config.json), found 8");
}

TEST_CASE("a head that is stored beside the embedding it is tied to is the same matrix, or refused") {
  DecoderGolden golden = golden_of("llama-tied-linear");
  golden.tensors["lm_head.weight"] = golden.tensors["model.embed_tokens.weight"];
  contains(refusal(golden, golden.config.dump()),
           "config.json: tie_word_embeddings: expected false, because lm_head and the embedding differ, "
           "found true");
  const Scratch scratch;
  write_decoder_checkpoint(golden, scratch / "model", {}, [&](Tensors& tensors) {
    const auto find = [&](const char* name) -> TensorData& {
      return *std::find_if(tensors.begin(), tensors.end(), [&](auto& t) { return t.name == name; });
    };
    find("lm_head.weight").bytes = find("model.embed_tokens.weight").bytes;
  });
  CHECK(message_of([&] { Decoder::open(scratch / "model"); }).empty());
  golden.tensors["lm_head.weight"] = Json(std::vector<int64_t>{47, 32});
  contains(refusal(golden, golden.config.dump()), "expected lm_head [48, 32]");
}

TEST_CASE("hostile numbers are refused before anything grows with them") {
  const DecoderGolden llama = golden_of("llama"), latent = golden_of("deepseek_v3");
  for (const int64_t huge : {int64_t{1} << 39, int64_t{-3}}) {
    for (const char* key : {"num_hidden_layers", "hidden_size", "vocab_size", "num_attention_heads",
                            "num_key_value_heads", "head_dim", "intermediate_size"}) {
      CAPTURE(key);
      CHECK_FALSE(refusal(llama, with(llama, key, huge)).empty());
    }
    for (const char* key : {"kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim",
                            "v_head_dim", "n_routed_experts", "num_experts_per_tok", "n_group", "topk_group",
                            "n_shared_experts", "moe_intermediate_size"}) {
      CAPTURE(key);
      CHECK_FALSE(refusal(latent, with(latent, key, huge)).empty());
    }
  }
  for (const char* text : {"null", "[]", "{}", "\"x\"", "1.5", "1e400"}) {
    CAPTURE(text);
    std::string config = with(llama, "rms_norm_eps", 0.4375);
    config.replace(config.find("0.4375"), 6, text);
    const std::string found = refusal(llama, config);
    CHECK(found.empty() == (std::string(text) == "null" || std::string(text) == "1.5"));
  }
  contains(refusal(llama, with(llama, "rope_parameters", {{"full_attention", {{"rope_theta", 1e4}}}})),
           "rope_parameters: expected one rope for all layers");
}

TEST_CASE("1000 tokens one by one say what a prefill says") {
  const int before = omp_get_max_threads();
  omp_set_num_threads(1);
  for (const char* name : {"mistral-window", "deepseek_v2-groups"}) {
    CAPTURE(name);
    const Scratch scratch;
    const DecoderGolden golden = golden_of(name);
    write_decoder_checkpoint(golden, scratch / "model", with(golden, "max_position_embeddings", 1000));
    const Decoder decoder = Decoder::open(scratch / "model");
    std::vector<int32_t> tokens;
    for (int i = 0; i < 1000; ++i) tokens.push_back((i * i + i / 7) % 48);
    const std::vector<float> whole = DecoderSequence(decoder).append(tokens, true);
    DecoderSequence sequence(decoder);
    double worst = 0;
    for (size_t i = 0; i < tokens.size(); ++i) {
      const std::vector<float> one = sequence.append(std::span(tokens).subspan(i, 1));
      double error = 0, largest = 0;
      for (size_t j = 0; j < one.size(); ++j) {
        error =
            std::max(error, std::abs(static_cast<double>(one[j]) - static_cast<double>(whole[48 * i + j])));
        largest = std::max(largest, std::abs(static_cast<double>(one[j])));
      }
      worst = std::max(worst, error / largest);
    }
    CHECK(worst <= 2e-4);  // as against transformers
  }
  omp_set_num_threads(before);
}

TEST_CASE("a weight that the family does not have is refused, as the model computes more with it") {
  DecoderGolden golden = golden_of("llama-llama3");
  golden.tensors["model.layers.1.self_attn.q_norm.weight"] = Json(std::vector<int64_t>{8});
  contains(refusal(golden, golden.config.dump()),
           "q_norm.weight: expected no such weight in a model of this family");
}

TEST_CASE("layers beyond those of the config are refused with both counts, drafts are not") {
  for (const char* name : {"llama", "qwen3_moe", "deepseek_v3"}) {
    CAPTURE(name);
    DecoderGolden golden = golden_of(name);
    const int64_t layers = golden.config["num_hidden_layers"].get<int64_t>();
    const std::string beyond = "model.layers." + std::to_string(layers + 1);
    golden.tensors[beyond + ".input_layernorm.weight"] = Json(std::vector<int64_t>{8});
    CHECK(contains(refusal(golden, golden.config.dump()), "config.json: num_hidden_layers: expected " +
                                                              std::to_string(layers + 2) + " (tensors of " +
                                                              beyond + "), found " + std::to_string(layers)));
    golden.tensors[beyond + ".eh_proj.weight"] = Json(std::vector<int64_t>{8, 16});
    CHECK(refusal(golden, golden.config.dump()) == "");
  }
}

TEST_CASE("biases of a stack have a row an expert") {
  DecoderGolden golden = golden_of("gpt_oss");
  golden.tensors["model.layers.1.mlp.experts.down_proj_bias"] = Json(std::vector<int64_t>{32, 8});
  contains(refusal(golden, golden.config.dump()),
           "down_proj_bias: expected floats [8, 32], found BF16 [32, 8]");
}

TEST_CASE("weights that are no numbers end a run with what they spoil first") {
  const Scratch scratch;
  const DecoderGolden golden = golden_of("qwen3_moe");
  const auto spoil = [&](const std::string& name) {
    write_decoder_checkpoint(golden, scratch / name, {}, [&](Tensors& tensors) {
      for (TensorData& t : tensors) {
        if (t.name == name) t.bytes[0] = 0xC0, t.bytes[1] = 0x7F;  // NaN
      }
    });
    const Decoder decoder = Decoder::open(scratch / name);
    return message_of([&] { DecoderSequence(decoder).append(golden.tokens); });
  };
  contains(spoil("model.layers.1.mlp.gate.weight"),
           "model.layers.1.mlp.gate: token 0 of the batch: expected finite logits, found");
  contains(spoil("model.layers.0.mlp.down_proj.weight"), "model.layers.1.mlp.gate: token 0");
}

TEST_CASE("tokens beyond the vocabulary or the positions are refused") {
  const Scratch scratch;
  const DecoderGolden golden = golden_of("llama");
  write_decoder_checkpoint(golden, scratch / "model");
  const Decoder decoder = Decoder::open(scratch / "model");
  DecoderSequence sequence(decoder);
  const std::vector<int32_t> beyond{3, 48}, below{-1}, many(513, 3);
  contains(message_of([&] { sequence.append(beyond); }), "token 1: expected 0 to 47");
  contains(message_of([&] { sequence.append(below); }), "token 0: expected 0 to 47");
  contains(message_of([&] { sequence.append(many); }),
           "expected at most the 512 tokens of max_position_embeddings, found 513");
}

TEST_CASE("of equal scores the lower expert is chosen, and the correction does not weigh") {
  const std::vector<float> logits{1, 1, 0, 1}, correction{0, 0, 5, 0};
  const ExpertChoice plain = cpu::choose_experts({}, logits, 4, 2, {});
  CHECK(plain.ids == std::vector<int32_t>{0, 1});
  RouterRule router;
  router.scores = RouterScores::kSigmoid;
  const ExpertChoice corrected = cpu::choose_experts(router, logits, 4, 2, correction);
  CHECK(corrected.ids == std::vector<int32_t>{2, 0});
  CHECK(corrected.weights[0] == doctest::Approx(0.5));
  CHECK(corrected.weights[1] == doctest::Approx(1 / (1 + std::exp(-1.0))));
}

TEST_CASE("MiniMax rotates as many numbers as rotary_dim says") {
  const DecoderGolden golden = golden_of("minimax_m2");
  const auto stating = [&](const Json& count, bool with_part = false) {
    Json config = golden.config;
    if (!with_part) config["rope_parameters"].erase("partial_rotary_factor");
    config["rotary_dim"] = count;
    return config.dump();
  };
  for (const auto& [count, is_same] : {std::pair(8, true), std::pair(16, false), std::pair(4, false)}) {
    const Scratch scratch;
    write_decoder_checkpoint(golden, scratch / "model", stating(count));
    const Decoder decoder = Decoder::open(scratch / "model");
    const double error = worst_error(golden, DecoderSequence(decoder).append(golden.tokens, true));
    CHECK((is_same ? error <= 2e-4 : error > 1e-3));
  }
  CHECK(refusal(golden, stating(8, true)).empty());
  contains(refusal(golden, stating(4, true)), "rotary_dim: expected 8 rotated numbers of 16, found 4");
  contains(refusal(golden, stating(18)), "rotary_dim: expected 16 rotated numbers of 16, found 18");
  contains(refusal(golden, stating(0)), "rotary_dim: expected a whole number above 0, found 0");
  contains(refusal(golden, stating(7)), "expected an even count of rotated numbers in heads of 16");
}

}  // namespace
}  // namespace twofour
