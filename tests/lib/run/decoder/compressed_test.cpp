#include <doctest/doctest.h>
#include <omp.h>

#include <string>
#include <vector>

#include "lib/run/decoder/decoder.h"
#include "tests/support/message.h"
#include "tests/support/models/decoder_golden.h"
#include "tests/support/models/pieces.h"
#include "tests/support/scratch.h"

// DeepSeek-V4: any pieces of a text, names of files, and configs.

namespace twofour {
namespace {

DecoderGolden compressed_golden(const std::string& name = "deepseek_v4") {
  return read_decoder_golden(std::filesystem::path(TWOFOUR_GOLDEN_DIR) / "decoder", name);
}

std::string compressed_refusal(const DecoderGolden& golden, const Json& config) {
  const Scratch scratch;
  write_decoder_checkpoint(golden, scratch / "model", config.dump());
  return message_of([&] { Decoder::open(scratch / "model"); });
}

std::vector<int32_t> tokens_of_table(int count) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < count; ++i) tokens.push_back((i * i + i / 5) % 48);
  return tokens;
}

double worst_row(std::span<const float> found, std::span<const float> expected) {
  double worst = 0;
  for (size_t i = 0; i < expected.size(); i += 48)
    worst = std::max(worst, relative_error(found.subspan(i, 48), expected.subspan(i, 48)));
  return worst;
}

/// The config as DeepSeek's files have it: ratios and one rope scaling, without transformers' kinds.
Json released_config(const DecoderGolden& golden, const std::vector<int>& ratios) {
  Json config = golden.config;
  Json yarn = config["rope_parameters"]["compress"];
  for (const char* key :
       {"rope_parameters", "layer_types", "mlp_layer_types", "compress_rates", "partial_rotary_factor"})
    config.erase(key);
  for (const char* key : {"rope_theta", "partial_rotary_factor", "attention_factor"}) yarn.erase(key);
  yarn["type"] = yarn["rope_type"];
  yarn.erase("rope_type");
  config["rope_scaling"] = yarn;
  config["compress_ratios"] = ratios;
  config["num_hash_layers"] = 1;
  return config;
}

TEST_CASE("prompts of compressed entries say in any pieces what single tokens say") {
  const std::vector<int32_t> tokens = tokens_of_table(262);
  for (const char* name : {"deepseek_v4", "deepseek_v4-tied"}) {
    CAPTURE(name);
    const Scratch scratch;
    write_decoder_checkpoint(compressed_golden(name), scratch / "model");
    const Decoder decoder = Decoder::open(scratch / "model");
    DecoderSequence single(decoder);
    std::vector<float> expected;
    for (const int32_t token : tokens) {
      const std::vector<float> one = single.append({&token, 1});
      expected.insert(expected.end(), one.begin(), one.end());
    }
    // Ends around entries of 4 and of 128 tokens, and around the window; then single tokens
    for (const size_t prompt : {1, 3, 4, 5, 7, 8, 9, 127, 128, 129, 131, 257}) {
      CAPTURE(prompt);
      DecoderSequence sequence(decoder);
      std::vector<float> logits = sequence.append(std::span(tokens).first(prompt), true);
      for (size_t i = prompt; i < std::min(prompt + 3, tokens.size()); ++i) {
        const auto next = sequence.append(std::span(tokens).subspan(i, 1));
        logits.insert(logits.end(), next.begin(), next.end());
      }
      CHECK(worst_row(logits, std::span(expected).first(logits.size())) <= 2e-5);
    }
    for (const std::vector<size_t>& pieces :
         {std::vector<size_t>{262}, {126, 1, 1, 134}, {2, 5, 9, 111, 3, 130, 2}, {129, 133}}) {
      const std::vector<float> logits = logits_in_pieces(decoder, tokens, pieces);
      CHECK(worst_row(logits, expected) <= 2e-5);
    }
  }
}

TEST_CASE("layers of all kinds are layers with a window until an entry is complete") {
  // Of tokens 0 to 2 no layer has an entry. Without rope scaling and with one theta the kinds do not differ.
  const DecoderGolden golden = compressed_golden();
  Json config = released_config(golden, {0, 4, 128, 4});
  config.erase("rope_scaling");
  config["compress_rope_theta"] = config["rope_theta"];
  Json windows = config;
  windows["compress_ratios"] = {0, 0, 0, 0};
  const Scratch scratch;
  write_decoder_checkpoint(golden, scratch / "model", config.dump());
  write_decoder_checkpoint(golden, scratch / "windows", windows.dump(), [](Tensors& tensors) {
    std::erase_if(tensors, [](const TensorData& t) {
      return t.name.find("compressor") != t.name.npos || t.name.find("indexer") != t.name.npos;
    });
  });
  const Decoder a = Decoder::open(scratch / "model"), b = Decoder::open(scratch / "windows");
  const std::vector<int32_t> tokens = tokens_of_table(4);
  const std::vector<float> x = DecoderSequence(a).append(tokens, true),
                           y = DecoderSequence(b).append(tokens, true);
  CHECK(worst_row(std::span(x).first(3 * 48), std::span(y).first(3 * 48)) == 0);
  CHECK(worst_row(std::span(x).last(48), std::span(y).last(48)) >
        1e-3);  // token 3 sees the entry it completes
}

TEST_CASE("released names and names of transformers' modules are the same model") {
  const DecoderGolden golden = compressed_golden();
  const auto renamed = [](std::string name, const std::vector<std::pair<std::string, std::string>>& parts) {
    for (const auto& [from, to] : parts) {
      if (const size_t at = name.find(from); at != name.npos) name.replace(at, from.size(), to);
    }
    return name;
  };
  // Order matters, as in conversion_mapping.py.
  const std::vector<std::pair<std::string, std::string>> released = {{"model.embed_tokens", "embed"},
                                                                     {"model.hc_head.hc_", "hc_head_"},
                                                                     {".attn.norm.", ".attn.kv_norm."},
                                                                     {"model.", ""}};
  const std::vector<std::pair<std::string, std::string>> modules = {
      {"head.weight", "lm_head.weight"},
      {".attn.norm.", ".attn.kv_norm."},
      {".attn_norm.", ".input_layernorm."},
      {".ffn_norm.", ".post_attention_layernorm."},
      {".hc_attn_", ".attn_hc."},
      {".hc_ffn_", ".ffn_hc."},
      {".attn.", ".self_attn."},
      {".ffn.", ".mlp."},
      {".indexer.compressor.", ".compressor.indexer."},
      {".indexer.wq_b.", ".compressor.indexer.q_b_proj."},
      {".indexer.weights_proj.", ".compressor.indexer.scorer.weights_proj."},
      {"compressor.norm.", "compressor.kv_norm."},
      {"indexer.norm.", "indexer.kv_norm."},
      {".ape", ".position_bias"},
      {".wq_a.", ".q_a_proj."},
      {".wq_b.", ".q_b_proj."},
      {".wkv.", ".kv_proj."},
      {".wgate.", ".gate_proj."},
      {".wo_a.", ".o_a_proj."},
      {".wo_b.", ".o_b_proj."},
      {".q_norm.", ".q_a_norm."},
      {".attn_sink", ".sinks"},
      {".gate.bias", ".gate.e_score_correction_bias"},
      {".w1.", ".gate_proj."},
      {".w2.", ".down_proj."},
      {".w3.", ".up_proj."}};
  for (const auto& [names, embedding, config] :
       {std::tuple(released, "embed.weight", released_config(golden, {0, 4, 128, 4, 0})),
        std::tuple(released, "embed.weight", released_config(golden, {1, 4, 128, 4})),
        std::tuple(modules, "model.embed_tokens.weight", golden.config)}) {
    const Scratch scratch;
    write_decoder_checkpoint(golden, scratch / "model", config.dump(), [&](Tensors& tensors) {
      for (TensorData& t : tensors) t.name = renamed(t.name, names);
      CHECK(std::count_if(tensors.begin(), tensors.end(), [&](auto& t) { return t.name == embedding; }) == 1);
    });
    const Decoder decoder = Decoder::open(scratch / "model");
    CHECK(worst_error(golden, DecoderSequence(decoder).append(golden.tokens, true)) <= 2e-4);
  }
}

TEST_CASE("tables of experts may be narrow, and are held against the experts") {
  const DecoderGolden golden = compressed_golden();
  for (const int expert : {0, 7, 8, -1}) {
    const Scratch scratch;
    write_decoder_checkpoint(golden, scratch / "model", {}, [&](Tensors& tensors) {
      for (TensorData& t : tensors) {
        if (t.dtype != DType::kI64) continue;
        t.dtype = DType::kI32;
        t.bytes.assign(t.bytes.size() / 2, expert < 0 ? 0xFF : 0);
        for (size_t i = 0; i < t.bytes.size() && expert >= 0; i += 4)
          t.bytes[i] = static_cast<uint8_t>(expert);
      }
    });
    const Decoder decoder = Decoder::open(scratch / "model");
    const std::string refused = message_of([&] { DecoderSequence(decoder).append(tokens_of_table(3)); });
    if (expert >= 0 && expert < 8) {
      CHECK(refused.empty());
    } else {
      contains(refused,
               "ffn.gate.tid2eid: token 0: expected experts 0 to 7, found " + std::to_string(expert));
    }
  }
}

TEST_CASE(
    "compressed entries have the same floats for any number of threads, and sequences of a batch are apart") {
  const int before = omp_get_max_threads();
  const Scratch scratch;
  const DecoderGolden golden = compressed_golden();
  write_decoder_checkpoint(golden, scratch / "model");
  const Decoder decoder = Decoder::open(scratch / "model");
  omp_set_num_threads(1);
  const std::vector<float> one = DecoderSequence(decoder).append(golden.tokens, true);
  omp_set_num_threads(3);
  CHECK(DecoderSequence(decoder).append(golden.tokens, true) == one);
  omp_set_num_threads(before);
  // Two sequences in a batch
  const std::vector<int32_t> tokens = tokens_of_table(190);
  const auto width = static_cast<size_t>(decoder.shape().residual());
  std::vector<float> hidden(tokens.size() * width);
  decoder.embed(tokens, hidden);
  std::vector<float> second(hidden.begin() + static_cast<int64_t>(140 * width), hidden.end());
  const SequencePart parts[] = {{140, 0, nullptr, tokens.data()}, {50, 0, nullptr, tokens.data() + 140}};
  const SequencePart alone = parts[1];
  for (int64_t layer = 0; layer < 4; ++layer) {
    decoder.run_layer(layer, parts, hidden);
    decoder.run_layer(layer, {&alone, 1}, second);
  }
  CHECK(relative_error(std::span(hidden).last(second.size()), second) <= 1e-5);
}

TEST_CASE("every setting of DeepSeek-V4 changes what it says") {
  const DecoderGolden golden = compressed_golden();
  for (const auto& [key, value] :
       std::vector<std::pair<std::string, Json>>{{"rms_norm_eps", 1e-2},
                                                 {"hc_eps", 1e-1},
                                                 {"hc_sinkhorn_iters", 1},
                                                 {"index_topk", 3},
                                                 {"sliding_window", 8},
                                                 {"swiglu_limit", 10.0},
                                                 {"routed_scaling_factor", 2.5},
                                                 {"num_hash_layers", 1},
                                                 {"rope_theta", 5000.0},
                                                 {"compress_rope_theta", 5000.0}}) {
    CAPTURE(key);
    Json config = released_config(golden, {0, 4, 128, 4});
    config[key] = value;
    const Scratch scratch;
    write_decoder_checkpoint(golden, scratch / "model", config.dump());
    const Decoder decoder = Decoder::open(scratch / "model");
    const double error = worst_error(golden, DecoderSequence(decoder).append(golden.tokens, true));
    CHECK((error > 1e-3) == (key != "num_hash_layers"));
  }
}

TEST_CASE("windows, entries and tokens without an entry are counted") {
  const Scratch scratch;
  write_decoder_checkpoint(compressed_golden(), scratch / "model");
  const Decoder decoder = Decoder::open(scratch / "model");
  // Heads and keys of the index have 16 numbers. Two layers have both for 4 tokens, one has entries of 128.
  CHECK(decoder.cache_bytes_per_token() == 4 * (2 * 8 + 1));
  // Four windows of 8 tokens; values and gates of 7 tokens, two rows of both widths; and of 127 tokens
  CHECK(decoder.state_bytes() == 4 * (4 * 8 * 16 + 2 * 7 * 4 * 32 + 127 * 2 * 16));
}

TEST_CASE("hostile configs of DeepSeek-V4 are refused by name") {
  const DecoderGolden golden = compressed_golden();
  const Json released = released_config(golden, {0, 4, 128, 4});
  const auto refused = [&](const char* key, const Json& value, const std::string& expected) {
    CAPTURE(key);
    Json config = released;
    config[key] = value;
    contains(compressed_refusal(golden, config), std::string(key) + ": expected " + expected);
  };
  const std::string ratios = "0, 4 or 128 for each of 4 layers, found ";
  for (const Json& value : {Json(nullptr), Json(4), Json("4"), Json({0, 4, 128}), Json({0, 4, 2, 4}),
                            Json({0, 4, "128", 4}), Json({0, 4, -4, 4}), Json::object()})
    refused("compress_ratios", value, ratios);
  refused("layer_types", std::vector<std::string>(4, "sliding_attention"), "the kinds of compress_ratios");
  refused("layer_types", std::vector<std::string>(3, "sliding_attention"), "sliding_attention, compressed_");
  refused("layer_types", std::vector<std::string>(4, "full_attention"), "sliding_attention, compressed_");
  refused("mlp_layer_types", std::vector<std::string>(4, "dense"), "hash_moe or moe for each of 4 layers");
  refused("compress_rate_csa", 8, "4, found 8");
  refused("num_key_value_heads", 2, "1, found 2");
  refused("o_groups", 3, "a divisor of the 4 heads, found 3");
  refused("hc_mult", 1, "two or more residual streams, found 1");
  refused("index_head_dim", 24, "a power of two of at least 8, found 24");
  refused("index_head_dim", 4, "a power of two of at least 8, found 4");
  refused("qk_rope_head_dim", 7, "an even count of rotated numbers in heads of 16, found 7");
  refused("qk_rope_head_dim", 18, "an even count of rotated numbers in heads of 16, found 18");
  refused("partial_rotary_factor", 0.25, "8 rotated numbers of 16, found 0.25");
  refused("norm_topk_prob", false, "true, found false");
  refused("scoring_func", "sigmoid", "sqrtsoftplus, found \"sigmoid\"");
  refused("hidden_act", "gelu", "silu");
  refused("rope_theta", 1, "a number above 1, found 1");
  refused("compress_rope_theta", 0.5, "a number above 1, found 0.5");
  refused("swiglu_limit", 0, "a finite number above 0, found 0");
  refused("hc_eps", -1, "a finite number not below 0, found -1");
  for (const char* key : {"head_dim", "q_lora_rank", "o_groups", "o_lora_rank", "hc_mult", "index_n_heads",
                          "index_head_dim", "index_topk", "sliding_window", "hc_sinkhorn_iters",
                          "moe_intermediate_size", "n_shared_experts", "n_routed_experts"}) {
    refused(key, 0, "a whole number above 0, found 0");
    refused(key, -1, "a whole number above 0, found -1");
    if (std::string_view(key) != "n_routed_experts") refused(key, int64_t{1} << 39, "at most ");
  }
  // Experts are counted before the settings of the family are read.
  Json many = released;
  many["n_routed_experts"] = int64_t{1} << 39;
  contains(compressed_refusal(golden, many),
           "ffn.experts: expected 549755813888 experts (config.json), found 8");
  // DeepSeek-V4.1 under either name
  refused("kv_source_layer_ids", {0, 1}, "none: DeepSeek-V4.1 has it, and this is DeepSeek-V4");
  refused("model_type", "deepseek_v41", "a family that can be run (llama, ");
  Json config = released;
  config["rope_scaling"]["attention_factor"] = 1.2;
  contains(compressed_refusal(golden, config), "rope_scaling.attention_factor: expected 1, found 1.2");
  config = golden.config;
  config["compress_rates"]["compressed_sparse_attention"] = 8;
  contains(compressed_refusal(golden, config),
           "compress_rates.compressed_sparse_attention: expected 4, found 8");
  config = golden.config;
  config["rope_parameters"].erase("compress");
  contains(compressed_refusal(golden, config), "rope_parameters.compress: expected an object, found none");
  config = golden.config;
  config["rope_parameters"]["main"]["partial_rotary_factor"] = 1.0;
  contains(compressed_refusal(golden, config),
           "rope_parameters.main.partial_rotary_factor: expected 8 rotated numbers of 16, found 1.0");
  // Kinds that tensors do not have
  config = released_config(golden, {4, 4, 128, 4});
  contains(compressed_refusal(golden, config), "attn.compressor.wkv [32, 32], found none");
  config = released_config(golden, {0, 0, 128, 4});
  contains(compressed_refusal(golden, config), "expected no such weight in a model of this family");
  config = released;
  config["num_hash_layers"] = 2;
  contains(compressed_refusal(golden, config), "layers.1.ffn.gate.tid2eid [48, 2], found none");
  config["num_hash_layers"] = 0;
  contains(compressed_refusal(golden, config), "layers.0.ffn.gate.bias [8], found none");
}

}  // namespace
}  // namespace twofour
