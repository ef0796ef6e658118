#include "lib/run/eval/evaluate.h"

#include <doctest/doctest.h>
#include <omp.h>
#include <xtensor/xadapt.hpp>
#include <xtensor/xmath.hpp>
#include <xtensor/xsort.hpp>
#include <xtensor/xview.hpp>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>

#include "tests/support/message.h"
#include "tests/support/models/decoder_golden.h"
#include "tests/support/scratch.h"

namespace twofour {
namespace {

/// A golden model opened, and what transformers says of its tokens.
struct OpenGolden {
  explicit OpenGolden(const std::string& name)
      : golden(read_decoder_golden(std::filesystem::path(TWOFOUR_GOLDEN_DIR) / "decoder", name)) {
    write_decoder_checkpoint(golden, scratch / "model");
    decoder.emplace(Decoder::open(scratch / "model"));
  }
  /// Log-probabilities of what follows each token but the last, by transformers' logits.
  xt::xtensor<double, 2> log_probabilities() const {
    const auto tokens = static_cast<int64_t>(golden.tokens.size());
    const xt::xtensor<double, 2> x =
        xt::view(xt::adapt(golden.logits.data(), {tokens, golden.vocabulary}), xt::range(0, tokens - 1));
    const xt::xtensor<double, 1> sums = xt::sum(xt::exp(x), {1});
    return x - xt::log(xt::view(sums, xt::all(), xt::newaxis()));
  }
  EvalWindow window() const { return {golden.tokens, 1}; }
  Scratch scratch;
  DecoderGolden golden;
  std::optional<Decoder> decoder;
};

EvalFigures evaluated(const OpenGolden& a, const OpenGolden* b, const std::vector<EvalWindow>& windows) {
  Progress progress;
  return evaluate(*a.decoder, b != nullptr ? &*b->decoder : nullptr, windows, progress);
}

TEST_CASE("a text is cut so that every token but the first is predicted once") {
  std::vector<int32_t> text(23);
  std::iota(text.begin(), text.end(), 0);
  for (const auto& [context, stride, count] :
       {std::array<int64_t, 3>{23, 5, 1}, {24, 1, 1}, {8, 4, 5}, {2, 1, 22}}) {
    const std::vector<EvalWindow> windows = cut_windows(text, context, stride);
    CHECK(windows.size() == static_cast<size_t>(count));
    int64_t next = 1;
    for (const EvalWindow& w : windows) {
      CHECK(w.tokens.size() <= static_cast<size_t>(context));
      CHECK(w.tokens[static_cast<size_t>(w.first)] == next);
      next += w.predictions();
    }
    CHECK(next == 23);
  }
  // Windows side by side: nothing is before the first token of each.
  const std::vector<EvalWindow> apart = cut_windows(text, 8, 8);
  REQUIRE(apart.size() == 3);
  for (const EvalWindow& w : apart) CHECK(w.first == 1);
  CHECK(apart[2].tokens.front() == 16);
  CHECK(cut_windows(std::span(text).first(17), 8, 8).size() == 2);
  CHECK(cut_windows(std::span(text).first(1), 8, 4).empty());
  CHECK(cut_windows(text, 8, 1, 3).size() == 3);
  CHECK(cut_windows(text, 8, 8, 9).size() == 3);
  CHECK(cut_windows(text, 8, 8, 0).empty());
}

TEST_CASE("losses, divergence and agreement are those of transformers' logits") {
  const OpenGolden a("qwen3_moe"), b("llama");
  const EvalFigures f = evaluated(a, &b, {a.window()});
  const auto p = a.log_probabilities(), q = b.log_probabilities();
  const xt::xtensor<double, 1> divergences = xt::sort(xt::eval(xt::sum(xt::exp(q) * (q - p), {1})));
  const std::vector<int32_t> next(a.golden.tokens.begin() + 1, a.golden.tokens.end());
  xt::xtensor<double, 1> losses = xt::zeros_like(divergences), others = losses;
  for (size_t i = 0; i < next.size(); ++i) losses(i) = -p(i, next[i]), others(i) = -q(i, next[i]);
  const auto n = static_cast<double>(next.size());
  const double loss = xt::mean(losses)(), other = xt::mean(others)();
  const double last = divergences.periodic(-1);
  CHECK(f.predictions == static_cast<int64_t>(next.size()));
  CHECK(f.loss.mean == doctest::Approx(loss).epsilon(1e-5));
  CHECK(f.loss.error ==
        doctest::Approx(std::sqrt(xt::sum(xt::square(losses - loss))() / (n - 1) / n)).epsilon(1e-4));
  REQUIRE(f.against);
  CHECK(f.against->loss.mean == doctest::Approx(other).epsilon(1e-5));
  CHECK(f.against->difference.mean == doctest::Approx(loss - other).epsilon(1e-4));
  CHECK(f.against->divergence.mean == doctest::Approx(xt::mean(divergences)()).epsilon(1e-4));
  CHECK(f.against->agreement ==
        doctest::Approx(xt::mean(xt::cast<double>(xt::equal(xt::argmax(p, 1), xt::argmax(q, 1))))()));
  CHECK(f.against->divergence_p99 == doctest::Approx(last).epsilon(1e-4));  // of 47 the last
  REQUIRE(f.worst.size() == 10);
  CHECK(f.worst[0].divergence == doctest::Approx(last).epsilon(1e-4));
  CHECK(f.worst[9].divergence == doctest::Approx(divergences.periodic(-10)).epsilon(1e-4));
  CHECK(f.against->layers.size() == 3);

  double sum = 0;
  int64_t count = 0;
  for (const PositionFigures& at : f.positions) {
    sum += at.loss * static_cast<double>(at.predictions);
    count += at.predictions;
  }
  CHECK(count == f.predictions);
  CHECK(sum / n == doctest::Approx(f.loss.mean));
}

TEST_CASE("a model differs in nothing from itself") {
  const OpenGolden a("gpt_oss");
  const EvalFigures f = evaluated(a, &a, {a.window()});
  REQUIRE(f.against);
  CHECK(f.against->divergence.mean == 0.0);
  CHECK(f.against->difference.mean == 0.0);
  CHECK(f.against->agreement == 1.0);
  for (const LayerAgreement& l : f.against->layers) {
    CHECK(l.cosine == doctest::Approx(1.0));
    CHECK(l.relative_error == 0.0);
  }
}

TEST_CASE("the same figures for any number of threads, and of windows together or apart") {
  const OpenGolden a("deepseek_v3");
  const std::vector<EvalWindow> windows = cut_windows(a.golden.tokens, 16, 8);
  const int before = omp_get_max_threads();
  std::vector<double> found;
  for (const int threads : {1, 2, 5}) {
    omp_set_num_threads(threads);
    found.push_back(evaluated(a, nullptr, windows).loss.mean);
  }
  omp_set_num_threads(before);
  CHECK(found[1] == found[0]);
  CHECK(found[2] == found[0]);
  double sum = 0;
  int64_t count = 0;
  for (const EvalWindow& w : windows) {
    const EvalFigures f = evaluated(a, nullptr, {w});
    sum += f.loss.mean * static_cast<double>(f.predictions);
    count += f.predictions;
  }
  CHECK(sum / static_cast<double>(count) == doctest::Approx(found[0]).epsilon(1e-5));
}

TEST_CASE("the error of losses that are all the same is nothing") {
  const OpenGolden a("llama");
  write_decoder_checkpoint(a.golden, a.scratch / "even", {}, [](Tensors& tensors) {
    for (TensorData& t : tensors) {
      if (t.name == "model.norm.weight") std::fill(t.bytes.begin(), t.bytes.end(), uint8_t{0});
    }
  });
  const Decoder even = Decoder::open(a.scratch / "even");  // every logit is 0
  for (size_t size = 50; size <= 500; size += 50) {
    const std::vector<EvalWindow> windows{{std::vector<int32_t>(size, 3), 1}};
    Progress progress;
    const EvalFigures f = evaluate(even, nullptr, windows, progress);
    CHECK(f.loss.mean == doctest::Approx(std::log(48.0)));
    CHECK(f.loss.error < 1e-14);
  }
}

TEST_CASE("a logit of -inf is refused where it leaves all but the divergence finite") {
  const OpenGolden a("llama");
  const std::vector<EvalWindow> windows{{{1, 2}, 1}};
  int edited = 0;
  for (const unsigned infinity : {0x7F80u, 0xFF80u}) {
    // The first number of the row alone, so that the logit is no NaN.
    write_decoder_checkpoint(a.golden, a.scratch / "infinite", {}, [&](Tensors& tensors) {
      for (TensorData& t : tensors) {
        if (t.name != "lm_head.weight") continue;
        t.bytes[0] = static_cast<uint8_t>(infinity);
        t.bytes[1] = static_cast<uint8_t>(infinity >> 8);
        ++edited;
      }
    });
    const Decoder infinite = Decoder::open(a.scratch / "infinite");
    Progress progress;
    contains(message_of([&] { evaluate(infinite, &*a.decoder, windows, progress); }),
             "expected finite logits");
    contains(message_of([&] { evaluate(*a.decoder, &infinite, windows, progress); }),
             "expected finite logits");
  }
  CHECK(edited == 2);
}

TEST_CASE("the memory that is stated has all windows and predictions in it") {
  const OpenGolden a("llama");
  const std::vector<int32_t> text(400'000, 3);
  const auto stated = [&](size_t tokens) {
    return plan_evaluation(*a.decoder, nullptr, cut_windows(std::span(text).first(tokens), 64, 1))
        .peak_memory;
  };
  const uint64_t window = 64 * sizeof(int32_t) + sizeof(EvalWindow) + sizeof(EvalPlace);
  CHECK(stated(400'000) - stated(200'000) >= 200'000 * window);
}

TEST_CASE("windows beyond the model's positions and other vocabularies are refused") {
  const OpenGolden a("llama");
  const EvalWindow longer{std::vector<int32_t>(513, 3), 1};
  contains(message_of([&] { evaluated(a, nullptr, {longer}); }),
           "expected windows of at most the 512 tokens of max_position_embeddings, found 513");
  DecoderGolden other = a.golden;
  other.config["vocab_size"] = 40;
  write_decoder_checkpoint(other, a.scratch / "other");
  const Decoder fewer = Decoder::open(a.scratch / "other");
  const std::vector<EvalWindow> windows{a.window()};
  Progress progress;
  contains(message_of([&] { evaluate(*a.decoder, &fewer, windows, progress); }), "48 tokens, found 40");
}

}  // namespace
}  // namespace twofour
