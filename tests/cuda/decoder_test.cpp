#include "lib/run/decoder/decoder.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "lib/run/eval/generate.h"
#include "tests/support/decoder_golden.h"
#include "tests/support/device/device.h"
#include "tests/support/message.h"
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
      contains(message_of([&] { decoder.use_cuda(); }), "expected a family that runs on CUDA, found ");
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
  for (const char* name : {"llama", "qwen3_moe", "deepseek_v3"}) {
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
  for (const char* name : {"llama", "qwen3_moe", "gpt_oss"}) {
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

}  // namespace
}  // namespace twofour
