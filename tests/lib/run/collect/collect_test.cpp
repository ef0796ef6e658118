#include "lib/run/collect/collect.h"

#include <doctest/doctest.h>
#include <omp.h>
#include <xtensor/xadapt.hpp>
#include <xtensor/xmath.hpp>
#include <xtensor/xview.hpp>

#include <algorithm>
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
#include "tests/support/message.h"
#include "tests/support/models/decoder_golden.h"
#include "tests/support/scratch.h"

namespace twofour {
namespace {

struct CollectModel {
  explicit CollectModel(const std::string& name)
      : golden(read_decoder_golden(std::filesystem::path(TWOFOUR_GOLDEN_DIR) / "decoder", name)) {
    write_decoder_checkpoint(golden, scratch / "model");
    decoder.emplace(Decoder::open(scratch / "model"));
  }
  /// Windows of 12 tokens, the last ones held out.
  CollectInput input(size_t first, size_t count, int64_t held_out) const {
    CollectInput made{{}, held_out, "golden"};
    for (size_t i = first; i < first + count; ++i)
      made.windows.emplace_back(golden.tokens.begin() + static_cast<int64_t>(12 * i),
                                golden.tokens.begin() + static_cast<int64_t>(12 * (i + 1)));
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

using Matrix = xt::xtensor<double, 2>;

/// Sums of x x' over the inputs x [k] of a group, in double.
struct SlowSums : LayerWatcher {
  explicit SlowSums(const std::vector<InputGroup>& all) : groups(all), counts(all.size()) {
    for (const InputGroup& g : all) sums.push_back(xt::zeros<double>({g.k, g.k}));
  }
  void see_input(size_t group, std::span<const float> x, std::span<const int64_t>) override {
    const auto k = groups[group].k, tokens = static_cast<int64_t>(x.size()) / k;
    const Matrix all = xt::adapt(x.data(), {tokens, k});
    sums[group] += xt::sum(
        xt::view(all, xt::all(), xt::all(), xt::newaxis()) * xt::view(all, xt::all(), xt::newaxis()), {0});
    counts[group] += tokens;
  }
  void see_expert(int64_t expert, double sum) override { norms[expert] += sum; }
  const std::vector<InputGroup>& groups;
  std::vector<Matrix> sums;
  std::vector<int64_t> counts;
  std::map<int64_t, double> norms;
};

double relative(std::span<const float> found, std::span<const double> expected) {
  const auto want = xt::adapt(expected.data(), {expected.size()});
  const auto off = xt::adapt(found.data(), {found.size()}) - want;
  return std::sqrt(xt::sum(off * off)() / xt::sum(want * want)());
}

TEST_CASE("sums are those of every linear's inputs, per expert by routing") {
  for (const char* name : {"deepseek_v3", "gpt_oss", "qwen2_moe", "llama", "mixtral", "qwen3_next", "qwen3_5",
                           "qwen3_5_moe-vision", "deepseek_v4", "gemma3-linear", "minimax_m2", "nemotron_h",
                           "nemotron_h-steps"}) {
    CAPTURE(name);
    const CollectModel model(name);
    const Statistics s = Statistics::open(model.collect(model.input(0, 3, 0), "stats"));
    CHECK(s.heldout_entries().empty());
    std::vector<float> hidden(36 * static_cast<size_t>(model.decoder->shape().residual()));
    model.decoder->embed(std::span(model.golden.tokens).first(36), hidden);
    std::vector<SequencePart> parts(3, {12, 0, nullptr, model.golden.tokens.data()});
    parts[1].ids += 12, parts[2].ids += 24;
    size_t unseen = 0;
    for (int64_t layer = 0; layer < model.decoder->shape().layers; ++layer) {
      const std::vector<InputGroup>& groups = model.decoder->input_groups(layer);
      SlowSums slow(groups);
      model.decoder->run_layer(layer, parts, hidden, &slow);
      for (size_t g = 0; g < groups.size(); ++g) {
        CAPTURE(groups[g].linears.front());
        for (const std::string& linear : groups[g].linears) {
          const StatisticsEntry* entry = s.find(linear);
          REQUIRE(entry != nullptr);
          if (slow.counts[g] == 0) {
            CHECK(entry->name == groups[g].block + ".down_proj");
            ++unseen;
            continue;
          }
          CHECK(entry->name == groups[g].linears.front());
          CHECK(entry->count == slow.counts[g] * groups[g].times);
        }
        if (slow.counts[g] == 0) continue;
        const Matrix mean = slow.sums[g] / static_cast<double>(slow.counts[g]);
        CHECK(relative(s.read_hessian(*s.find(groups[g].linears.front())), mean) < 1e-6);
      }
      if (slow.norms.empty()) continue;
      for (size_t i = 0; i < s.tensors().size(); ++i) {
        const auto routed =
            std::find_if(groups.begin(), groups.end(), [](auto& g) { return !g.block.empty(); });
        if (s.tensors()[i].name != routed->block + ".saliency") continue;
        std::vector<float> saliency(static_cast<size_t>(s.tensors()[i].shape[0]));
        s.read(i, 0, saliency);
        for (size_t e = 0; e < saliency.size(); ++e)
          CHECK(static_cast<double>(saliency[e]) ==
                doctest::Approx(slow.norms[static_cast<int64_t>(e)]).epsilon(1e-6));
        slow.norms.clear();
      }
      CHECK(slow.norms.empty());
    }
    const std::vector<InputGroup> head{*model.decoder->head_group()};
    SlowSums slow(head);
    // The norm of mixed streams is held against double with their other blocks.
    const bool mixed = model.decoder->shape().streams.are_mixed();
    slow.see_input(0, mixed ? model.decoder->normalize(hidden) : golden_last_norm(model.golden, hidden), {});
    const StatisticsEntry* entry = s.find(head[0].linears.front());
    REQUIRE(entry != nullptr);
    CHECK(entry->count == 36);
    CHECK(relative(s.read_hessian(*entry), Matrix(slow.sums[0] / 36)) < 1e-6);
    if (std::string(name) == "deepseek_v3") CHECK(unseen > 0);
    // Every linear of the files is served, under the files' names.
    const StatisticsCoverage coverage = cover(s, model.decoder->checkpoint());
    // The decoder does not run the tower of a model that also reads images.
    const size_t of_tower = std::string(name).ends_with("-vision") ? 6 : 0;
    CHECK(coverage.served + of_tower == coverage.linears);
    CHECK(coverage.same_weights);
  }
}

TEST_CASE("runs over parts of a text merge to what one run gives") {
  const CollectModel model("qwen3_moe");
  const Statistics whole = Statistics::open(model.collect(model.input(0, 4, 0), "whole"));
  const auto first = model.collect(model.input(0, 2, 0), "first"),
             second = model.collect(model.input(2, 2, 0), "second");
  merge_statistics({first, second}, model.scratch / "merged");
  const Statistics merged = Statistics::open(model.scratch / "merged");
  REQUIRE(merged.entries().size() == whole.entries().size());
  for (size_t i = 0; i < whole.entries().size(); ++i) {
    const StatisticsEntry &a = whole.entries()[i], &b = merged.entries()[i];
    CAPTURE(a.name);
    CHECK(a.name == b.name);
    CHECK(a.count == b.count);
    if (a.count == 0) continue;
    const std::vector<float> expected = whole.read_hessian(a);
    CHECK(relative(merged.read_hessian(b), std::vector<double>(expected.begin(), expected.end())) < 1e-6);
  }
}

TEST_CASE("held-out windows are kept apart, and the bytes are the same for any number of threads") {
  const CollectModel model("deepseek_v2");
  const int before = omp_get_max_threads();
  omp_set_num_threads(1);
  const std::string one = read_text(model.collect(model.input(0, 4, 1), "one"));
  omp_set_num_threads(4);
  CHECK(read_text(model.collect(model.input(0, 4, 1), "four")) == one);
  omp_set_num_threads(before);
  const Statistics both = Statistics::open(model.scratch / "one");
  const Statistics apart = Statistics::open(model.collect(model.input(3, 1, 0), "apart"));
  REQUIRE(both.heldout_entries().size() == apart.entries().size());
  CHECK(both.metadata("tokens") == "36");
  for (size_t i = 0; i < apart.entries().size(); ++i) {
    const StatisticsEntry &e = apart.entries()[i], &own = both.heldout_entries()[i];
    CAPTURE(e.name);
    CHECK(own.name == e.name);
    CHECK(own.count == e.count);
    if (e.count == 0) continue;
    const std::vector<float> expected = apart.read_hessian(e);
    CHECK(relative(both.read_hessian(own), std::vector<double>(expected.begin(), expected.end())) < 1e-6);
  }
}

TEST_CASE("windows beyond the model's positions are refused") {
  const CollectModel model("llama");
  CollectInput input{{std::vector<int32_t>(513, 3)}, 0, ""};
  contains(message_of([&] { model.collect(input, "stats"); }),
           "expected windows of at most the 512 tokens of max_position_embeddings, found 513");
  CHECK_FALSE(std::filesystem::exists(model.scratch / "stats"));
}

TEST_CASE("a head that is the embedding has no sums") {
  const CollectModel model("llama-tied-linear");
  const Statistics s = Statistics::open(model.collect(model.input(0, 2, 1), "stats"));
  CHECK(s.find("lm_head") == nullptr);
  CHECK(s.find("model.embed_tokens") == nullptr);
}

}  // namespace
}  // namespace twofour
