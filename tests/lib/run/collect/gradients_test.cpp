#include <doctest/doctest.h>
#include <omp.h>
#include <xtensor/xadapt.hpp>
#include <xtensor/xmath.hpp>
#include <xtensor/xview.hpp>

#include <cmath>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "formats/error.h"
#include "lib/base/io/file.h"
#include "lib/recipe/statistics/check_statistics.h"
#include "lib/recipe/statistics/merge_statistics.h"
#include "lib/recipe/statistics/statistics.h"
#include "lib/run/collect/collect.h"
#include "lib/run/gradients/gradients.h"
#include "tests/support/message.h"
#include "tests/support/models/decoder_golden.h"
#include "tests/support/scratch.h"

namespace twofour {
namespace {

constexpr size_t kWindow = 12;

struct GradientModel {
  explicit GradientModel(const std::string& name)
      : golden(read_decoder_golden(std::filesystem::path(TWOFOUR_GOLDEN_DIR) / "decoder", name)) {
    write_decoder_checkpoint(golden, scratch / "model");
    decoder.emplace(Decoder::open(scratch / "model"));
  }
  CollectInput input(const GradientRequest& request, size_t first = 0, size_t count = 3) const {
    CollectInput made{{}, 0, "golden", request};
    for (size_t i = first; i < first + count; ++i)
      made.windows.emplace_back(golden.tokens.begin() + static_cast<int64_t>(kWindow * i),
                                golden.tokens.begin() + static_cast<int64_t>(kWindow * (i + 1)));
    return made;
  }
  std::filesystem::path collect(const CollectInput& input, const std::string& name) const {
    Progress progress;
    collect_statistics(*decoder, input, scratch / name, progress);
    return scratch / name;
  }
  Scratch scratch;
  DecoderGolden golden;
  std::optional<Decoder> decoder;
};

using DoubleMatrix = xt::xtensor<double, 2>;

/// Sums over the tokens of each linear in double. Gate and up of one expert have one e.
struct SlowGradients : GradientWatcher {
  struct Sums {
    DoubleMatrix fisher, guided;
    double roots = 0, squares = 0;
    int64_t tokens = 0;
    xt::xtensor<double, 1> rows;
  };
  void see_gradient(size_t, std::span<const float> x, std::span<const int64_t> tokens,
                    std::span<const OutputGradient> outputs) override {
    const auto rows = static_cast<int64_t>(tokens.empty() ? all : tokens.size());
    const auto k = static_cast<int64_t>(x.size()) / rows;
    const DoubleMatrix in = xt::adapt(x.data(), {rows, k});
    xt::xtensor<double, 1> e = xt::zeros<double>({rows});
    int64_t width = 0;
    std::vector<DoubleMatrix> squared;
    for (const OutputGradient& o : outputs) {
      const auto n = static_cast<int64_t>(o.dy.size()) / rows;
      const DoubleMatrix d = xt::adapt(o.dy.data(), {rows, n});
      squared.push_back(d * d);
      e += xt::sum(squared.back(), {1});
      width += n;
    }
    e /= static_cast<double>(width);
    const xt::xtensor<double, 1> roots = xt::sqrt(e);
    for (size_t i = 0; i < outputs.size(); ++i) {
      Sums& s = sums[outputs[i].linear];
      if (s.tokens == 0) {
        s.fisher = s.guided = xt::zeros<double>({k, k});
        s.rows = xt::zeros<double>({squared[i].shape(1)});
      }
      for (int64_t t = 0; t < rows; ++t) {
        const auto row = xt::view(in, t, xt::all());
        const DoubleMatrix product =
            xt::view(row, xt::all(), xt::newaxis()) * xt::view(row, xt::newaxis(), xt::all());
        s.fisher += e(t) * product;
        s.guided += roots(t) * product;
      }
      s.rows += xt::sum(squared[i], {0});
      s.roots += xt::sum(roots)();
      s.squares += xt::sum(e)();
      s.tokens += rows;
    }
  }
  size_t all = 0;
  std::map<std::string, Sums> sums;
};

SlowGradients slow_gradients(const Decoder& model, const CollectInput& input) {
  std::vector<int32_t> tokens;
  for (const auto& w : input.windows) tokens.insert(tokens.end(), w.begin(), w.end());
  std::vector<SequencePart> parts;
  for (size_t row = 0; row < tokens.size(); row += kWindow)
    parts.push_back({static_cast<int64_t>(kWindow), 0, nullptr, tokens.data() + row});
  std::vector<std::vector<float>> hidden(1);
  hidden[0].resize(tokens.size() * static_cast<size_t>(model.shape().hidden));
  model.embed(tokens, hidden[0]);
  for (int64_t layer = 0; layer < model.shape().layers; ++layer) {
    hidden.push_back(hidden.back());
    model.run_layer(layer, parts, hidden.back());
  }
  SlowGradients slow;
  slow.all = tokens.size();
  std::vector<float> gradient(hidden[0].size());
  backward_head(model, parts, hidden.back(), gradient, &slow);
  for (int64_t layer = model.shape().layers - 1; layer >= 0; --layer)
    backward_layer(model, layer, parts, hidden[static_cast<size_t>(layer)], gradient, &slow);
  return slow;
}

double off_by(std::span<const float> found, const DoubleMatrix& expected) {
  REQUIRE(found.size() == expected.size());
  const auto off = xt::adapt(found.data(), expected.shape()) - expected;
  const double size = xt::sum(expected * expected)();
  return std::sqrt(xt::sum(off * off)() / (size > 0 ? size : 1));  // a token at an end has no gradient
}

std::vector<float> fisher_rows_of(const Statistics& s, const std::string& linear) {
  for (size_t i = 0; i < s.tensors().size(); ++i) {
    if (s.tensors()[i].name != linear + ".fisher_rows") continue;
    std::vector<float> rows(static_cast<size_t>(s.tensors()[i].shape[0]));
    s.read(i, 0, rows);
    return rows;
  }
  return {};
}

TEST_CASE("Fisher matrices, rows and guided sums are those of every linear's gradients") {
  for (const char* name :
       {"llama", "llama-tied-linear", "gemma3-linear", "deepseek_v3", "qwen2_moe", "mixtral", "gpt_oss"}) {
    for (const bool guided : {false, true}) {
      CAPTURE(name);
      CAPTURE(guided);
      const GradientModel model(name);
      const CollectInput input = model.input({.fisher = true, .guided = guided});
      const Statistics s = Statistics::open(model.collect(input, "stats"));
      CHECK(s.metadata("weighting") == (guided ? "guided" : "plain"));
      const SlowGradients slow = slow_gradients(*model.decoder, input);
      CHECK_FALSE(std::filesystem::exists(model.scratch / ".stats.streams.twofour-tmp"));
      const StatisticsCoverage coverage = cover(s, model.decoder->checkpoint());
      CHECK(coverage.served == coverage.linears);
      CHECK(coverage.missing.empty());
      // Gate and up of all experts of a layer share an entry, with the sums of all of them.
      std::map<const StatisticsEntry*, SlowGradients::Sums> entries;
      for (const auto& [linear, sums] : slow.sums) {
        CAPTURE(linear);
        const StatisticsEntry* entry = s.find(linear);
        REQUIRE(entry != nullptr);
        const std::vector<float> rows = fisher_rows_of(s, linear);
        REQUIRE(rows.size() >= sums.rows.size());
        for (size_t i = 0; i < sums.rows.size(); ++i)
          CHECK(static_cast<double>(rows[i]) == doctest::Approx(sums.rows(i)).epsilon(1e-5));
        if (entry->members.size() > 1 && (linear.ends_with("up_proj") || linear.ends_with("w3"))) continue;
        SlowGradients::Sums& all = entries[entry];
        if (all.tokens == 0) {
          all = sums;
          continue;
        }
        all.fisher += sums.fisher, all.guided += sums.guided, all.roots += sums.roots,
            all.tokens += sums.tokens;
      }
      for (const auto& [entry, sums] : entries) {
        CAPTURE(entry->name);
        CHECK(entry->count == sums.tokens);
        REQUIRE(entry->fisher.has_value());
        CHECK(off_by(s.read_fisher(*entry), sums.fisher / static_cast<double>(sums.tokens)) < 1e-5);
        if (guided) CHECK(off_by(s.read_hessian(*entry), sums.guided / sums.roots) < 1e-5);
      }
    }
  }
}

TEST_CASE("without gradients' weights, inputs and saliency are those of a run without a backward pass") {
  const GradientModel model("qwen3_moe");
  const Statistics plain = Statistics::open(model.collect(model.input({}), "plain"));
  const Statistics fisher = Statistics::open(model.collect(model.input({.fisher = true}), "fisher"));
  CHECK(plain.metadata("structure") == fisher.metadata("structure"));
  for (const StatisticsEntry& e : plain.entries()) {
    for (const std::string& linear : e.members) {
      const StatisticsEntry *a = plain.find(linear), *b = fisher.find(linear);
      CAPTURE(linear);
      CHECK(a->count == b->count);
      CHECK(plain.read_hessian(*a) == fisher.read_hessian(*b));
    }
  }
}

TEST_CASE("experts share a Fisher matrix by their tokens where theirs do not fit") {
  const GradientModel model("qwen3_moe");
  const Statistics apart = Statistics::open(model.collect(model.input({.fisher = true}), "apart"));
  const Statistics shared =
      Statistics::open(model.collect(model.input({.fisher = true, .expert_bytes = 0}), "shared"));
  size_t checked = 0;
  for (int64_t layer = 0; layer < model.decoder->shape().layers; ++layer) {
    DoubleMatrix all;
    int64_t tokens = 0;
    std::vector<const StatisticsEntry*> experts;
    for (const InputGroup& g : model.decoder->input_groups(layer)) {
      if (g.expert < 0) continue;
      const StatisticsEntry* e = apart.find(g.linears.front());
      if (e->name != g.linears.front()) continue;
      const std::vector<float> mean = apart.read_fisher(*e);
      const DoubleMatrix sum = xt::adapt(mean.data(), {g.k, g.k}) * static_cast<double>(e->count);
      all = tokens == 0 ? sum : DoubleMatrix(all + sum);
      tokens += e->count;
      experts.push_back(shared.find(g.linears.front()));
    }
    for (const StatisticsEntry* e : experts) {
      CHECK(off_by(shared.read_fisher(*e), all / static_cast<double>(tokens)) < 1e-5);
      ++checked;
    }
  }
  CHECK(checked > 4);
  CHECK(GradientSums::bytes(*model.decoder, model.decoder->input_groups(1),
                            {.fisher = true, .expert_bytes = 0}) <
        GradientSums::bytes(*model.decoder, model.decoder->input_groups(1), {.fisher = true}));
}

TEST_CASE("files with gradients are the same for any number of threads, and merge to what one run gives") {
  const GradientModel model("deepseek_v2");
  const GradientRequest both{.fisher = true, .guided = true};
  const int before = omp_get_max_threads();
  omp_set_num_threads(1);
  const std::string one = read_text(model.collect(model.input(both), "one"));
  omp_set_num_threads(4);
  CHECK(read_text(model.collect(model.input(both), "four")) == one);
  omp_set_num_threads(before);

  const GradientRequest fisher{.fisher = true};
  const Statistics whole = Statistics::open(model.collect(model.input(fisher), "whole"));
  merge_statistics(
      {model.collect(model.input(fisher, 0, 2), "first"), model.collect(model.input(fisher, 2, 1), "last")},
      model.scratch / "merged");
  const Statistics merged = Statistics::open(model.scratch / "merged");
  for (size_t i = 0; i < whole.entries().size(); ++i) {
    const StatisticsEntry& e = whole.entries()[i];
    if (e.count == 0) continue;
    CAPTURE(e.name);
    const std::vector<float> expected = whole.read_fisher(e);
    CHECK(off_by(merged.read_fisher(merged.entries()[i]), xt::adapt(expected.data(), {e.k, e.k})) < 1e-5);
    for (const std::string& linear : e.members) {
      const std::vector<float> a = fisher_rows_of(whole, linear), b = fisher_rows_of(merged, linear);
      REQUIRE(a.size() == b.size());
      for (size_t j = 0; j < a.size(); ++j) CHECK(b[j] == doctest::Approx(a[j]).epsilon(1e-5));
    }
  }
}

TEST_CASE("gradients of linear attention are refused before a file exists") {
  const GradientModel model("qwen3_next");
  contains(message_of([&] { model.collect(model.input({.fisher = true}), "stats"); }),
           "found qwen3_next, whose linear attention has none");
  CHECK_FALSE(std::filesystem::exists(model.scratch / "stats"));
}

}  // namespace
}  // namespace twofour
