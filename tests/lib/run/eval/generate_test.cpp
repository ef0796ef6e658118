#include "lib/run/eval/generate.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "tests/support/message.h"
#include "tests/support/models/decoder_golden.h"
#include "tests/support/scratch.h"

namespace twofour {
namespace {

DecoderGolden golden_of(const char* name) {
  return read_decoder_golden(std::filesystem::path(TWOFOUR_GOLDEN_DIR) / "decoder", name);
}

TEST_CASE("each token is the most probable one of a prefill with all before it") {
  for (const char* name : {"mistral-window", "deepseek_v2", "gpt_oss"}) {
    CAPTURE(name);
    const Scratch scratch;
    const DecoderGolden golden = golden_of(name);
    write_decoder_checkpoint(golden, scratch / "model");
    const Decoder decoder = Decoder::open(scratch / "model");
    std::vector<int32_t> tokens(golden.tokens.begin(), golden.tokens.begin() + 5);
    const Generation made = generate(decoder, tokens, 20, {});
    REQUIRE(made.tokens.size() == 20);
    CHECK_FALSE(made.is_ended);
    for (const GeneratedToken& t : made.tokens) {
      const std::vector<float> logits = DecoderSequence(decoder).append(tokens);
      CHECK(t.token == std::max_element(logits.begin(), logits.end()) - logits.begin());
      double sum = 0;
      for (const float v : logits) sum += std::exp(static_cast<double>(v));
      CHECK(t.log_probability ==
            doctest::Approx(static_cast<double>(logits[static_cast<size_t>(t.token)]) - std::log(sum))
                .epsilon(1e-4));
      tokens.push_back(t.token);
    }
    // A token that ends a text is the last, wherever it is in the list.
    const int32_t end = made.tokens[3].token;
    int32_t other = 0;  // a token that is not generated
    while (std::any_of(made.tokens.begin(), made.tokens.end(), [&](auto& t) { return t.token == other; }))
      ++other;
    for (const std::vector<int32_t>& ends : {std::vector{end}, {other, end}, {end, other}}) {
      const Generation ended = generate(decoder, std::span(tokens).first(5), 20, ends);
      CHECK(ended.is_ended);
      CHECK(ended.tokens.size() <= 4);
      CHECK(ended.tokens.back().token == end);
    }
    CHECK_FALSE(generate(decoder, std::span(tokens).first(5), 20, std::vector{other}).is_ended);
  }
}

TEST_CASE("generation stops at the model's positions") {
  const Scratch scratch;
  const DecoderGolden golden = golden_of("llama");
  Json config = golden.config;
  config["max_position_embeddings"] = 8;
  write_decoder_checkpoint(golden, scratch / "model", config.dump());
  const Decoder decoder = Decoder::open(scratch / "model");
  CHECK(generate(decoder, std::span(golden.tokens).first(5), 20, {}).tokens.size() == 3);
  contains(message_of([&] { generate(decoder, std::span(golden.tokens).first(9), 20, {}); }),
           "expected at most the 8 tokens of max_position_embeddings, found 9");
}

TEST_CASE("what ends a text is what generation_config.json says, else config.json") {
  const Scratch scratch;
  const DecoderGolden golden = golden_of("llama");
  write_decoder_checkpoint(golden, scratch / "model");
  const auto ends = [&] { return ending_tokens(Checkpoint::open(scratch / "model")); };
  CHECK(ends() == std::vector<int32_t>{2});
  const auto say = [&](const char* text) {
    std::ofstream(scratch / "model" / "generation_config.json") << text;
  };
  say(R"({"eos_token_id": [7, 9]})");
  CHECK(ends() == std::vector<int32_t>{7, 9});
  say(R"({"do_sample": true})");
  CHECK(ends() == std::vector<int32_t>{2});
  {
    Json config = golden.config;
    config.erase("eos_token_id");
    config["text_config"] = {{"eos_token_id", Json::array({3, 5})}};
    std::ofstream(scratch / "model" / "config.json") << config.dump();
  }
  CHECK(ends() == std::vector<int32_t>{3, 5});
  say(R"({"eos_token_id": -1})");
  contains(message_of(ends),
           "generation_config.json: eos_token_id: expected a token or a list of tokens, found -1");
}

}  // namespace
}  // namespace twofour
