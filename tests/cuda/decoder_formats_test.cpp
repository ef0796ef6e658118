#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <random>
#include <sstream>
#include <string>

#include "lib/recipe/statistics/statistics.h"
#include "lib/run/collect/collect.h"
#include "lib/run/decoder/decoder.h"
#include "lib/run/decoder/score.h"
#include "lib/synth/synth.h"
#include "tests/support/conversion.h"
#include "tests/support/device/device.h"
#include "tests/support/models/decoder_golden.h"
#include "tests/support/scratch.h"

namespace twofour {
namespace {

std::vector<int32_t> draw_tokens(size_t count, int64_t vocabulary) {
  std::mt19937 random(1);
  std::vector<int32_t> tokens(count);
  for (int32_t& t : tokens) t = static_cast<int32_t>(random() % static_cast<uint64_t>(vocabulary));
  return tokens;
}

/// The largest error of a position's logits, over the largest logit there.
double worst_row(const std::vector<float>& found, const std::vector<float>& expected, int64_t vocabulary) {
  REQUIRE(found.size() == expected.size());
  const auto width = static_cast<size_t>(vocabulary);
  double worst = 0;
  for (size_t i = 0; i < found.size(); i += width) {
    worst = std::max(
        worst, relative_error(std::span(found).subspan(i, width), std::span(expected).subspan(i, width)));
  }
  return worst;
}

void make_model(const std::filesystem::path& to, const char* shape) {
  SynthOptions options;
  options.shape = shape;
  options.small = true;
  options.layers = 4;  // one of them with attention in models with linear attention
  if (options.shape == "deepseek-v4") options.dialect = "released";  // others lack what its layers need
  Progress progress;
  synth(to, options, progress);
  // What a head of linear attention reads from a small state is nearly 0: a norm with a small epsilon would
  // magnify the rounding in it.
  std::ostringstream text;
  text << std::ifstream(to / "config.json").rdbuf();
  Json config = parse_json("config.json", text.str());
  Json& own = config.contains("text_config") ? config["text_config"] : config;
  if (!own.contains("linear_num_key_heads")) return;
  own["rms_norm_eps"] = 1e-2;
  std::ofstream(to / "config.json") << config.dump();
}

/// A prefill, and tokens one by one, of the device against a prefill of the CPU.
void compare(const std::filesystem::path& model, double bound) {
  const Decoder cpu = Decoder::open(model);
  Decoder cuda = Decoder::open(model);
  cuda.use_cuda();
  const int64_t vocabulary = cpu.shape().vocabulary;
  const std::vector<int32_t> tokens = draw_tokens(40, vocabulary);
  const std::vector<float> expected = DecoderSequence(cpu).append(tokens, true);
  const double prefill = worst_row(DecoderSequence(cuda).append(tokens, true), expected, vocabulary);
  std::vector<float> steps;
  DecoderSequence sequence(cuda);
  for (const int32_t& token : tokens) {
    const std::vector<float> row = sequence.append({&token, 1});
    steps.insert(steps.end(), row.begin(), row.end());
  }
  const double one_by_one = worst_row(steps, expected, vocabulary);
  MESSAGE(model.filename().string(), ": ", prefill, " and ", one_by_one);
  CHECK(prefill <= bound);
  CHECK(one_by_one <= bound);
}

// The bound of the issue for weights widened. 16 bits of mantissas, and sums in other orders.
constexpr double kBound = 2e-4;
// Kernels of layouts round inputs to 11 bits, with many rows an expert to 8; what is between the products
// too.
constexpr double kLayoutBound = 1e-2;
// Linear attention adds up what was rounded over all tokens.
constexpr double kHybridLayoutBound = 5e-2;

TEST_CASE("models in any format say on the device what they say on the CPU") {
  if (no_gpu()) return;
  for (const char* shape : {"llama", "qwen3-moe", "mixtral", "gpt-oss", "deepseek-v3", "kimi-k2-thinking",
                            "qwen3-next", "qwen3.6-35b-a3b", "qwen3.8-27b", "deepseek-v4"}) {
    CAPTURE(shape);
    const Scratch scratch;
    make_model(scratch / shape, shape);
    compare(scratch / shape, kBound);
  }
}

TEST_CASE("artifacts in a layout say on the device what they say on the CPU") {
  if (no_gpu()) return;
  for (const char* shape : {"llama", "qwen3-moe", "qwen3-next", "deepseek-v4"}) {
    const Scratch scratch;
    make_model(scratch / shape, shape);
    for (const char* layout : {"v7", "v7-packed", "g8"}) {
      CAPTURE(shape);
      CAPTURE(layout);
      OneRule rule;
      rule.to = layout;
      convert(scratch / shape, scratch / layout, rule);
      compare(scratch / layout, std::string(shape) == "qwen3-next" ? kHybridLayoutBound : kLayoutBound);
    }
  }
}

TEST_CASE("a thousand tokens one by one have the logits of a prefill") {
  if (no_gpu()) return;
  const Scratch scratch;
  make_model(scratch / "model", "qwen3-moe");
  Decoder decoder = Decoder::open(scratch / "model");
  decoder.use_cuda();
  const int64_t vocabulary = decoder.shape().vocabulary;
  const std::vector<int32_t> tokens = draw_tokens(1000, vocabulary);
  const std::vector<float> expected = DecoderSequence(decoder).append(tokens, true);
  std::vector<float> found;
  DecoderSequence sequence(decoder);
  for (const int32_t& token : tokens) {
    const std::vector<float> row = sequence.append({&token, 1});
    found.insert(found.end(), row.begin(), row.end());
  }
  const double worst = worst_row(found, expected, vocabulary);
  MESSAGE("1000 tokens: ", worst);
  CHECK(worst <= kBound);
}

TEST_CASE("tokens are scored on the device as on the CPU") {
  if (no_gpu()) return;
  const Scratch scratch;
  make_model(scratch / "model", "llama");
  Decoder cpu = Decoder::open(scratch / "model"), cuda = Decoder::open(scratch / "model"),
          other = Decoder::open(scratch / "model");
  cuda.use_cuda();
  other.use_cuda();
  const std::vector<int32_t> tokens = draw_tokens(50, cpu.shape().vocabulary);
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  std::vector<float> a(tokens.size() * static_cast<size_t>(cpu.shape().hidden)), b = a;
  for (float& v : a) v = normal(random);
  for (size_t i = 0; i < b.size(); ++i) b[i] = a[i] + 0.3f * normal(random);
  ScoredRows cpu_a{cpu, a}, cpu_b{cpu, b}, cuda_a{cuda, a}, cuda_b{other, b};
  score_tokens(tokens, cpu_a, &cpu_b);
  score_tokens(tokens, cuda_a, &cuda_b);
  for (size_t i = 0; i < tokens.size(); ++i) {
    const TokenScore &x = cpu_a.scores[i], &y = cuda_a.scores[i];
    CHECK(y.loss == doctest::Approx(x.loss).epsilon(1e-4));
    CHECK(y.divergence == doctest::Approx(x.divergence).epsilon(1e-3));
    CHECK(y.divergence > 0);
    CHECK(y.top == x.top);
    CHECK(cuda_b.scores[i].loss == doctest::Approx(cpu_b.scores[i].loss).epsilon(1e-4));
  }
}

TEST_CASE("statistics collected on the device are those of the CPU") {
  if (no_gpu()) return;
  for (const char* name :
       {"llama", "qwen2_moe", "gpt_oss", "deepseek_v3", "gemma3", "minimax_m2", "deepseek_v4"}) {
    CAPTURE(name);
    const Scratch scratch;
    const DecoderGolden golden = read_decoder_golden(golden_folder(), name);
    write_decoder_checkpoint(golden, scratch / "model");
    Decoder decoder = Decoder::open(scratch / "model");
    CollectInput input{{}, 1, "golden"};
    for (int64_t i = 0; i < 3; ++i)
      input.windows.emplace_back(golden.tokens.begin() + 12 * i, golden.tokens.begin() + 12 * (i + 1));
    Progress progress;
    collect_statistics(decoder, input, scratch / "cpu", progress);
    decoder.use_cuda();
    collect_statistics(decoder, input, scratch / "cuda", progress);
    const Checkpoint cpu = Checkpoint::open(scratch / "cpu"), cuda = Checkpoint::open(scratch / "cuda");
    REQUIRE(cpu.tensors().size() == cuda.tensors().size());
    double worst = 0;
    std::string of;
    for (const TensorInfo& t : cpu.tensors()) {
      CAPTURE(t.name);
      if (t.dtype == DType::kF32) {
        // An expert at which a token is nearly as well off as at another may lose it: not in these.
        const double error = relative_error(read_whole<float>(cuda, t.name), read_whole<float>(cpu, t.name));
        if (error > worst) worst = error, of = t.name;
      } else {
        CHECK(read_whole<uint8_t>(cuda, t.name) == read_whole<uint8_t>(cpu, t.name));
      }
    }
    MESSAGE(std::string(name), ": ", worst, " of ", of);
    CHECK(worst <= 5e-4);
  }
}

}  // namespace
}  // namespace twofour
