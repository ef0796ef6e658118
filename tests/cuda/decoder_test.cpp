#include "lib/run/decoder/decoder.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "lib/run/eval/generate.h"
#include "tests/support/device/device.h"
#include "tests/support/models/decoder_golden.h"
#include "tests/support/models/pieces.h"
#include "tests/support/scratch.h"

namespace twofour {
namespace {

TEST_CASE("logits on the device are those of transformers, for a prefill and for tokens one by one") {
  if (no_gpu()) return;
  for (const std::string& name : decoder_golden_names(golden_folder())) {
    CAPTURE(name);
    const Scratch scratch;
    const DecoderGolden golden = read_decoder_golden(golden_folder(), name);
    write_decoder_checkpoint(golden, scratch / "model");
    Decoder decoder = Decoder::open(scratch / "model");
    if (!decoder.shape().runs_on_cuda()) {
      CHECK_THROWS_WITH(decoder.use_cuda(), doctest::Contains("expected a family that runs on CUDA"));
      continue;
    }
    decoder.use_cuda();
    DecoderSequence whole(decoder);
    const double prefill = worst_error(golden, whole.append(golden.tokens, true));
    const double steps = worst_error(golden, run_golden(decoder, golden));
    MESSAGE(name, ": ", prefill, " and ", steps);
    CHECK(prefill <= 2e-4);
    CHECK(steps <= 2e-4);
  }
}

TEST_CASE("layers that do not fit the device together come one after another, to the same logits") {
  if (no_gpu()) return;
  for (const char* name : {"llama", "qwen3_moe", "deepseek_v3", "gemma3", "deepseek_v4"}) {
    CAPTURE(name);
    const Scratch scratch;
    const DecoderGolden golden = read_decoder_golden(golden_folder(), name);
    write_decoder_checkpoint(golden, scratch / "model");
    Decoder all = Decoder::open(scratch / "model"), some = Decoder::open(scratch / "model");
    all.use_cuda();
    const uint64_t least = all.device_weight_bytes();
    some.use_cuda(least - 1);
    CHECK(run_golden(all, golden) == run_golden(some, golden));
    CHECK_THROWS_WITH(some.use_cuda(1),
                      doctest::Contains("bytes of device memory for the embedding and one layer"));
  }
}

TEST_CASE("a continuation on the device is that of the CPU") {
  if (no_gpu()) return;
  for (const char* name :
       {"llama", "qwen3_moe", "gpt_oss", "gemma3-linear", "minimax_m2", "deepseek_v4-tied"}) {
    CAPTURE(name);
    const Scratch scratch;
    const DecoderGolden golden = read_decoder_golden(golden_folder(), name);
    write_decoder_checkpoint(golden, scratch / "model");
    const Decoder cpu = Decoder::open(scratch / "model");
    Decoder cuda = Decoder::open(scratch / "model");
    cuda.use_cuda();
    const auto prompt = std::span<const int32_t>(golden.tokens).first(4);
    const Generation a = generate(cpu, prompt, 19, {}), b = generate(cuda, prompt, 19, {});
    REQUIRE(a.tokens.size() == b.tokens.size());
    for (size_t i = 0; i < a.tokens.size(); ++i) {
      CHECK(a.tokens[i].token == b.tokens[i].token);
      CHECK(b.tokens[i].log_probability == doctest::Approx(a.tokens[i].log_probability).epsilon(1e-3));
    }
    // Ended by a token within what is chosen at a time.
    const int32_t end = a.tokens[2].token;
    const Generation c = generate(cpu, prompt, 19, {&end, 1}), d = generate(cuda, prompt, 19, {&end, 1});
    CHECK(c.tokens.size() == d.tokens.size());
    CHECK(d.is_ended);
  }
}

TEST_CASE("prompts of compressed entries say on the device in any pieces what single tokens say on the CPU") {
  if (no_gpu()) return;
  // The choices of experts and of entries for these tokens have distances of at least 5e-5 of the scores from
  // others. The CPU test's tokens have one of 2e-7, which rounding decides.
  std::vector<int32_t> tokens;
  for (int i = 0; i < 262; ++i) tokens.push_back((5 * i * i + i / 7 + 1) % 48);
  for (const char* name : {"deepseek_v4", "deepseek_v4-tied"}) {
    CAPTURE(name);
    const Scratch scratch;
    write_decoder_checkpoint(read_decoder_golden(golden_folder(), name), scratch / "model");
    const Decoder cpu = Decoder::open(scratch / "model");
    Decoder cuda = Decoder::open(scratch / "model");
    cuda.use_cuda();
    const std::vector<float> expected = DecoderSequence(cpu).append(tokens, true);
    // Ends around entries of 4 and of 128 tokens, and around the window; tokens in front of room for more
    for (const std::vector<size_t>& pieces : {std::vector<size_t>{262},
                                              {126, 1, 1, 134},
                                              {2, 5, 9, 111, 3, 130, 2},
                                              {129, 133},
                                              {1, 3, 1, 1, 122, 1, 133},
                                              {257, 1, 1, 1, 1, 1}}) {
      const std::vector<float> logits = logits_in_pieces(cuda, tokens, pieces);
      double worst = 0;
      for (size_t i = 0; i < logits.size(); i += 48)
        worst = std::max(
            worst, relative_error(std::span(logits).subspan(i, 48), std::span(expected).subspan(i, 48)));
      CAPTURE(pieces.front());
      CHECK(worst <= 2e-4);
    }
  }
}

TEST_CASE("a table of experts that names others is refused before it is on the device") {
  if (no_gpu()) return;
  const Scratch scratch;
  write_decoder_checkpoint(read_decoder_golden(golden_folder(), "deepseek_v4"), scratch / "model", {},
                           [](Tensors& tensors) {
                             for (TensorData& t : tensors)
                               if (t.dtype == DType::kI64) t.bytes[2 * 8] = 8;
                           });
  Decoder decoder = Decoder::open(scratch / "model");
  decoder.use_cuda();
  const std::vector<int32_t> tokens{5, 6};
  CHECK_THROWS_WITH(DecoderSequence(decoder).append(tokens),
                    doctest::Contains("ffn.gate.tid2eid: token 1: expected experts 0 to 7, found 8"));
}

}  // namespace
}  // namespace twofour
