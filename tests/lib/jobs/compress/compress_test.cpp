#include "lib/jobs/compress/compress.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "formats/error.h"
#include "kernels/moe/router.h"
#include "lib/base/io/file.h"
#include "lib/jobs/convert/convert.h"
#include "lib/recipe/artifact/open_unpacked.h"
#include "lib/recipe/statistics/statistics.h"
#include "lib/run/collect/collect.h"
#include "lib/write/transform/open_to_convert.h"
#include "tests/support/checkpoint_builder.h"
#include "tests/support/message.h"
#include "tests/support/models/decoder_golden.h"
#include "tests/support/scratch.h"

namespace twofour {
namespace compress_test {
namespace {

namespace fs = std::filesystem;

constexpr size_t kWindows = 12, kLength = 32;

Recipe quantize_recipe(const std::string& pattern = "", const std::vector<std::string>& also = {}) {
  Rule rule{.to = "quantize"};
  rule.pattern = pattern;
  rule.selection.also = parse_patterns(also);
  return Recipe(rule);
}

struct CompressModel {
  explicit CompressModel(const std::string& name, const std::function<void(Tensors&)>& edit = nullptr)
      : golden(read_decoder_golden(fs::path(TWOFOUR_GOLDEN_DIR) / "decoder", name)) {
    write_decoder_checkpoint(golden, scratch / "model", {}, edit);
    for (size_t w = 0; w < kWindows; ++w) {
      windows.emplace_back();
      for (size_t i = 0; i < kLength; ++i)
        windows.back().push_back(static_cast<int32_t>((i * i + 7 * w + i / 3) % 48));
    }
  }
  CompressInput input(Sequential sequential) const {
    CompressInput made;
    made.windows = windows;
    made.text = "squares";
    made.sequential = sequential;
    return made;
  }
  /// -> the statistics.
  fs::path collect(const CompressInput& input, const Recipe& recipe, const std::string& name) const {
    Compression compression(scratch / "model", recipe, input, {best_isa()}, 2);
    Progress progress;
    compression.collect(scratch / name, progress);
    return Compression::statistics_of(scratch / name);
  }
  /// What quantizing by statistics writes.
  fs::path write(const Recipe& recipe, const fs::path& statistics, const std::string& name) const {
    const auto file = std::make_shared<const Statistics>(Statistics::open(statistics));
    const Recipe solved = with_statistics(recipe, file, file->hash().hex());
    const Checkpoint source = open_to_convert(scratch / "model", solved);
    Progress progress;
    convert(source, make_plan(source, solved), scratch / name, {}, progress);
    return scratch / name;
  }
  std::vector<SequencePart> parts() const {
    std::vector<SequencePart> made;
    for (const auto& w : windows) made.push_back({kLength, 0, nullptr, w.data()});
    return made;
  }
  std::vector<float> embed(const Decoder& model) const {
    std::vector<float> hidden(kWindows * kLength * static_cast<size_t>(model.shape().residual()));
    model.embed(join_windows(windows), hidden);
    return hidden;
  }
  int64_t hidden() const { return text_config(golden)["hidden_size"].get<int64_t>(); }
  Scratch scratch;
  DecoderGolden golden;
  std::vector<std::vector<int32_t>> windows;
};

/// All inputs of a half of a layer, by group.
struct Inputs : LayerWatcher {
  explicit Inputs(size_t groups) : x(groups), tokens(groups) {}
  void see_input(size_t group, std::span<const float> rows, std::span<const int64_t> of) override {
    x[group].assign(rows.begin(), rows.end());
    tokens[group].assign(of.begin(), of.end());
  }
  void see_expert(int64_t, double) override {}
  std::vector<std::vector<float>> x;
  std::vector<std::vector<int64_t>> tokens;
};

/// sum over rows of w a' b in double, one after another.
std::vector<double> slow_products(const std::vector<double>& a, size_t n, const std::vector<float>& b,
                                  size_t k, const std::vector<double>& w) {
  std::vector<double> sums(n * k);
  for (size_t row = 0; row < b.size() / k; ++row) {
    for (size_t i = 0; i < n; ++i) {
      for (size_t j = 0; j < k; ++j)
        sums[i * k + j] += w[row] * a[row * n + i] * static_cast<double>(b[row * k + j]);
    }
  }
  return sums;
}

double relative(const std::vector<float>& found, const std::vector<double>& expected) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    difference += std::pow(static_cast<double>(found[i]) - expected[i], 2);
    size += expected[i] * expected[i];
  }
  return size == 0 ? std::sqrt(difference) : std::sqrt(difference / size);
}

std::vector<double> widened(const std::vector<float>& x) { return {x.begin(), x.end()}; }

/// What the linears of a group see in both models.
struct GroupInputs {
  const std::vector<float>&x, &d;  ///< [rows, k]
  std::vector<int64_t> tokens;     ///< of the rows; empty: all
  /// What the residual stream of the compressed model lacks, [tokens, N]; empty: the output is not added to
  /// it.
  std::vector<float> residual;
};

/// Holds the statistics of a linear against sums in double.
void check_linear(const std::string& linear, const GroupInputs& in, int64_t inputs, const Decoder& dense,
                  const Statistics& s, const std::map<std::string, std::vector<float>>& weights) {
  const StatisticsEntry* entry = s.find(linear);
  if (entry == nullptr) return;
  CAPTURE(linear);
  const auto k = static_cast<size_t>(inputs), rows = in.x.size() / k;
  const auto token_of = [&](size_t row) {
    return in.tokens.empty() ? row : static_cast<size_t>(in.tokens[row]);
  };
  std::vector<double> w(rows, 1.0);
  if (const auto at = weights.find(linear); at != weights.end()) {
    for (size_t row = 0; row < rows; ++row) w[row] = static_cast<double>(at->second[token_of(row)]);
  }
  double all = 0;
  for (const double one : w) all += one;
  std::vector<double> mean = slow_products(widened(in.x), k, in.x, k, w);
  for (double& v : mean) v /= all;
  CHECK(relative(s.read_hessian(*entry), mean) < 1e-5);

  const auto target = s.target_offset(linear);
  REQUIRE(target);
  const auto n = static_cast<size_t>(dense.rows_of_linear(linear));
  std::vector<float> weight(n * k);
  dense.read_linear(linear, 0, static_cast<int64_t>(n), weight);
  std::vector<double> lacking(rows * n);
  for (size_t row = 0; row < rows; ++row) {
    for (size_t i = 0; i < n; ++i) {
      double sum = in.residual.empty() ? 0.0 : static_cast<double>(in.residual[token_of(row) * n + i]);
      for (size_t j = 0; j < k; ++j)
        sum += static_cast<double>(weight[i * k + j]) *
               (static_cast<double>(in.d[row * k + j]) - static_cast<double>(in.x[row * k + j]));
      lacking[row * n + i] = sum;
    }
  }
  std::vector<double> expected = slow_products(lacking, n, in.x, k, w);
  for (double& v : expected) v /= all;
  std::vector<float> found(n * k);
  s.read_target_offset(*target, *entry, 0, found);
  CHECK(relative(found, expected) < 1e-4);
}

/// Holds the statistics of a layer's half against sums over the inputs of the finished artifact: what a group
/// sees depends on the groups before it alone, which are compressed in both.
void check_half(const CompressModel& model, const Decoder& dense, const Decoder& compressed, int64_t layer,
                LayerHalf half, std::vector<float>& d_stream, std::vector<float>& x_stream,
                const Statistics& s, const std::map<std::string, std::vector<float>>& weights) {
  const std::vector<InputGroup>& groups = dense.input_groups(layer);
  Inputs x(groups.size()), d(groups.size());
  std::vector<float> residual = d_stream;
  for (size_t i = 0; i < residual.size(); ++i) residual[i] -= x_stream[i];
  ExpertChoice chosen;
  compressed.run_half(layer, half, model.parts(), x_stream, {.watcher = &x, .chosen = &chosen});
  std::vector<float> copy = d_stream;
  const bool routed = half == LayerHalf::kFeedForward && !chosen.ids.empty();
  dense.run_half(layer, half, model.parts(), copy, {.watcher = &d, .given = routed ? &chosen : nullptr});
  dense.run_half(layer, half, model.parts(), d_stream, {});
  for (size_t g = 0; g < groups.size(); ++g) {
    if (half_of(groups[g].stage) != half || x.x[g].empty()) continue;
    const GroupInputs in{x.x[g], d.x[g], x.tokens[g], groups[g].adds ? residual : std::vector<float>{}};
    for (const std::string& linear : groups[g].linears)
      check_linear(linear, in, groups[g].k, dense, s, weights);
  }
}

void check_all(const CompressModel& model, const fs::path& statistics, const fs::path& artifact,
               const std::map<std::string, std::vector<float>>& weights = {}) {
  const Statistics s = Statistics::open(statistics);
  const Decoder dense = Decoder::open(model.scratch / "model"), compressed = Decoder::open(artifact);
  std::vector<float> d = model.embed(dense), x = d;
  size_t with_targets = 0;
  for (int64_t layer = 0; layer < dense.shape().layers; ++layer) {
    for (const LayerHalf half : {LayerHalf::kAttention, LayerHalf::kFeedForward})
      check_half(model, dense, compressed, layer, half, d, x, s, weights);
  }
  if (!dense.shape().streams.are_mixed()) {
    const std::vector<float> head_x = golden_last_norm(model.golden, x),
                             head_d = golden_last_norm(model.golden, d);
    check_linear("lm_head", {head_x, head_d, {}, {}}, model.hidden(), dense, s, weights);
  }
  for (const StatisticsEntry& e : s.entries()) with_targets += s.target_offset(e.members[0]).has_value();
  CHECK(with_targets > 0);
}

}  // namespace

TEST_CASE(
    "group by group, sums are those of the artifact's own inputs, and targets make up for what it lacks") {
  for (const char* name :
       {"llama", "qwen2", "qwen3_moe", "mixtral", "qwen2_moe", "gpt_oss", "qwen3_next", "qwen3_5-vision",
        "qwen3_5_moe", "deepseek_v4", "gemma3-linear", "minimax_m2", "nemotron_h", "nemotron_h-steps"}) {
    CAPTURE(name);
    const CompressModel model(name);
    const Recipe recipe = quantize_recipe();
    const fs::path statistics = model.collect(model.input(Sequential::kGroups), recipe, "work");
    check_all(model, statistics, model.write(recipe, statistics, "artifact"));
  }
}

TEST_CASE("a head that the recipe takes sees what compressed layers make, and no other one has statistics") {
  // Rows beyond the vocabulary.
  const auto lengthen = [](Tensors& tensors) {
    for (TensorData& t : tensors) {
      if (t.name != "lm_head.weight") continue;
      t.bytes.insert(t.bytes.end(), t.bytes.begin(), t.bytes.begin() + 16 * t.shape[1] * 2);
      t.shape[0] += 16;
    }
  };
  struct Case {
    const char* name;
    std::function<void(Tensors&)> edit;
  };
  const Case cases[] = {{"llama", nullptr}, {"llama", lengthen}, {"deepseek_v3", nullptr}};
  for (const Case& c : cases) {
    CAPTURE(c.name);
    const CompressModel model(c.name, c.edit);
    const Recipe recipe = quantize_recipe("", {"lm_head"});
    const fs::path statistics = model.collect(model.input(Sequential::kGroups), recipe, "work");
    const Statistics s = Statistics::open(statistics);
    REQUIRE(s.find("lm_head") != nullptr);
    CHECK(s.find("lm_head")->count == static_cast<int64_t>(kWindows * kLength));
    check_all(model, statistics, model.write(recipe, statistics, "artifact"));
  }
  const CompressModel model("llama");
  const Statistics without =
      Statistics::open(model.collect(model.input(Sequential::kGroups), quantize_recipe(), "without"));
  CHECK(without.find("lm_head") == nullptr);
  // Alone: nothing before it is compressed.
  Rule rule{.to = "quantize"};
  rule.selection.from_default = false;
  rule.selection.also = parse_patterns({"lm_head"});
  const Statistics alone =
      Statistics::open(model.collect(model.input(Sequential::kGroups), Recipe(rule), "alone"));
  REQUIRE(alone.entries().size() == 1);
  std::vector<float> offset(48 * 32, 1.0f);
  alone.read_target_offset(*alone.target_offset("lm_head"), alone.entries()[0], 0, offset);
  CHECK(offset == std::vector<float>(48 * 32));
}

TEST_CASE("layer by layer, a layer's groups see its dense linears behind compressed layers") {
  const CompressModel model("llama");
  const Recipe recipe = quantize_recipe("2:4", {"lm_head"});
  const fs::path statistics = model.collect(model.input(Sequential::kLayers), recipe, "work");
  const fs::path artifact = model.write(recipe, statistics, "artifact");
  const Statistics s = Statistics::open(statistics);
  const Decoder dense = Decoder::open(model.scratch / "model"), compressed = Decoder::open(artifact);
  std::vector<float> x = model.embed(dense), d = x;
  for (int64_t layer = 0; layer < dense.shape().layers; ++layer) {
    const std::vector<InputGroup>& groups = dense.input_groups(layer);
    Inputs seen(groups.size());
    std::vector<float> copy = x;
    dense.run_layer(layer, model.parts(), copy, &seen);
    for (size_t g = 0; g < groups.size(); ++g) {
      const auto k = static_cast<size_t>(groups[g].k);
      const size_t rows = seen.x[g].size() / k;
      std::vector<double> mean = slow_products(widened(seen.x[g]), k, seen.x[g], k,
                                               std::vector<double>(rows, 1.0 / static_cast<double>(rows)));
      CHECK(relative(s.read_hessian(*s.find(groups[g].linears.front())), mean) < 1e-5);
    }
    compressed.run_layer(layer, model.parts(), x);
    dense.run_layer(layer, model.parts(), d);
  }
  REQUIRE(s.find("lm_head") != nullptr);
  const std::vector<float> head_x = golden_last_norm(model.golden, x),
                           head_d = golden_last_norm(model.golden, d);
  check_linear("lm_head", {head_x, head_d, {}, {}}, model.hidden(), dense, s, {});
}

TEST_CASE("tokens count by their weights, each linear by its own") {
  const CompressModel model("llama");
  const Recipe recipe = quantize_recipe("", {"lm_head"});
  std::map<std::string, std::vector<float>> weights;
  Tensors file;
  const Decoder dense = Decoder::open(model.scratch / "model");
  std::vector<std::string> linears{"lm_head"};
  for (int64_t layer = 0; layer < dense.shape().layers; ++layer) {
    for (const InputGroup& group : dense.input_groups(layer))
      linears.insert(linears.end(), group.linears.begin(), group.linears.end());
  }
  for (const std::string& linear : linears) {
    std::vector<float> w(kWindows * kLength);
    for (size_t i = 0; i < w.size(); ++i) w[i] = static_cast<float>((i * linear.size() + i / 5) % 7) / 4.0f;
    TensorData t{linear + ".token_weights", DType::kF32, {kWindows, kLength}, {}};
    t.bytes.resize(w.size() * sizeof(float));
    std::memcpy(t.bytes.data(), w.data(), t.bytes.size());
    file.push_back(std::move(t));
    weights[linear] = std::move(w);
  }
  write_safetensors(model.scratch / "weights.safetensors", file);
  CompressInput input = model.input(Sequential::kGroups);
  input.token_weights = model.scratch / "weights.safetensors";
  const fs::path statistics = model.collect(input, recipe, "work");
  const Statistics s = Statistics::open(statistics);
  CHECK(s.metadata("weighting") == "guided");
  CHECK(s.find("model.layers.0.self_attn.q_proj") != s.find("model.layers.0.self_attn.k_proj"));
  CHECK(s.find("lm_head") != nullptr);
  check_all(model, statistics, model.write(recipe, statistics, "artifact"), weights);

  file.pop_back();
  write_safetensors(model.scratch / "fewer.safetensors", file);
  input.token_weights = model.scratch / "fewer.safetensors";
  contains(message_of([&] { model.collect(input, recipe, "fewer"); }),
           "fewer.safetensors: expected model.layers.");
  const float negative = -1;
  std::memcpy(file[0].bytes.data(), &negative, sizeof negative);
  file.push_back({file[0].name + "x", DType::kF32, {2, 2}, std::vector<uint8_t>(16)});
  write_safetensors(model.scratch / "other.safetensors", file);
  input.token_weights = model.scratch / "other.safetensors";
  contains(message_of([&] { model.collect(input, recipe, "other"); }),
           "expected M.token_weights F32 [windows, length] of the 384 tokens, found F32 [2, 2]");
}

TEST_CASE("of the model as it is, sums are those of stats collect") {
  const CompressModel model("qwen3_moe");
  const fs::path found =
      model.collect(model.input(Sequential::kNone), quantize_recipe("", {"lm_head"}), "work");
  const Decoder dense = Decoder::open(model.scratch / "model");
  Progress progress;
  collect_statistics(dense, {model.windows, 0, "squares"}, model.scratch / "collected", progress);
  const Statistics s = Statistics::open(found), expected = Statistics::open(model.scratch / "collected");
  size_t compared = 0;
  for (const StatisticsEntry& e : s.entries()) {
    CAPTURE(e.name);
    const auto& all = expected.entries();
    const auto other =
        std::find_if(all.begin(), all.end(), [&](const StatisticsEntry& one) { return one.name == e.name; });
    // Routers and what else is not quantized have no entry of theirs.
    if (other == all.end()) continue;
    ++compared;
    CHECK(e.count == other->count);
    CHECK_FALSE(s.target_offset(e.members[0]));
    if (e.count == 0) continue;
    CHECK(relative(s.read_hessian(e), widened(expected.read_hessian(*other))) < 1e-6);
  }
  CHECK(compared > s.entries().size() / 2);
  CHECK(s.find("lm_head") != nullptr);
}

TEST_CASE("streams and inputs in memory, in files or computed again give the same bytes") {
  for (const char* name : {"llama", "qwen3_moe", "qwen3_next", "deepseek_v4", "gemma3-linear"}) {
    CAPTURE(name);
    const CompressModel model(name);
    CompressInput input = model.input(Sequential::kGroups);
    const std::string expected = read_text(model.collect(input, quantize_recipe(), "memory"));
    const Decoder dense = Decoder::open(model.scratch / "model");
    const uint64_t streams = Streams::bytes(2, kWindows * kLength, dense.shape().residual());
    for (const uint64_t memory : {uint64_t{0}, streams}) {
      input.memory = memory;
      CHECK((read_text(model.collect(input, quantize_recipe(), fmt::format("of-{}", memory))) == expected));
    }
    // Files have each layer's state, too.
    input.memory = 0;
    for (int64_t stop = 1; stop <= 2; ++stop) {
      Compression compression(model.scratch / "model", quantize_recipe(), input, {best_isa()}, 2);
      Progress progress;
      compression.collect(model.scratch / "parts", progress, stop);
      CHECK(Compression::layers_done(model.scratch / "parts") == stop);
    }
    CHECK((read_text(model.collect(input, quantize_recipe(), "parts")) == expected));
  }
}

TEST_CASE("what stays in memory is in what a dry run states") {
  const CompressModel model("llama");
  CompressInput input = model.input(Sequential::kGroups);
  const auto peak = [&] {
    return Compression(model.scratch / "model", quantize_recipe(), input, {best_isa()}, 2)
        .needs()
        .peak_memory;
  };
  const uint64_t most = peak();
  const Decoder dense = Decoder::open(model.scratch / "model");
  const uint64_t streams = Streams::bytes(2, kWindows * kLength, dense.shape().residual());
  input.memory = streams;
  const uint64_t some = peak();
  input.memory = 0;
  CHECK(some == peak() + streams);
  int64_t widest = 0;
  for (const InputGroup& g : dense.input_groups(0)) widest = std::max(widest, g.adds ? g.k : 0);
  CHECK(most == some + static_cast<uint64_t>(widest) * kWindows * kLength * sizeof(float));
}

TEST_CASE("a run that ended early goes on behind its last whole layer and collects the same bytes") {
  const CompressModel model("qwen3_moe");
  const Recipe recipe = quantize_recipe("2:4", {"lm_head"});
  const CompressInput input = model.input(Sequential::kGroups);
  const std::string whole = read_text(model.collect(input, recipe, "whole"));
  const fs::path work = model.scratch / "work";
  for (int64_t stop = 0; stop <= 3; ++stop) {  // the last time before the head
    CAPTURE(stop);
    {
      Compression compression(model.scratch / "model", recipe, input, {best_isa()}, 2);
      Progress progress;
      compression.collect(work, progress, stop);
    }
    // What the layer at work left is of no use.
    for (const char* name : {"streams-even", "streams-odd"}) {
      const bool is_before = (stop % 2 == 0) == (std::string(name) == "streams-even");
      if (is_before || stop == 0) continue;
      const auto size = fs::file_size(work / name);
      write_text(work / name, std::string(size, 'x'));
    }
    std::ofstream(work / temporary_name("state.json")) << "half";  // as a kill between two layers leaves it
    CHECK(read_text(model.collect(input, recipe, "work")) == whole);
    fs::remove_all(work);
  }
  {
    Compression compression(model.scratch / "model", recipe, input, {best_isa()}, 2);
    Progress progress;
    compression.collect(work, progress, 1);
  }
  CompressInput other = input;
  other.windows[0][0] = 47 - other.windows[0][0];
  contains(message_of([&] { model.collect(other, recipe, "work"); }),
           "expected the same source, recipe and tool as before, found compress: tokens changed");
  // What the run before collected must be there, and state how much of it there is.
  const fs::path kept = model.scratch / "kept";
  fs::copy(work, kept);
  const auto refused = [&](const std::string& message) {
    CAPTURE(message);
    contains(message_of([&] { model.collect(input, recipe, "work"); }), message);
    fs::remove_all(work);
    fs::copy(kept, work);
  };
  for (const char* name : {"statistics.safetensors", "streams-even", "streams-odd"}) {
    fs::remove(work / name);
    refused(std::string(name) + ": expected ");
    fs::resize_file(work / name, 10);
    refused(std::string(name) + ": expected ");
  }
  const std::string state = read_text(work / "state.json"), layers = "\"layers\":1";
  REQUIRE(state.find(layers) != state.npos);
  for (const char* other_layers : {"\"layers\":-1", "\"layers\":0", "\"layers\":99", "\"layers\":\"1\"",
                                   "\"layers\":1.5", "\"layer\":1"}) {
    std::string changed = state;
    write_text(work / "state.json", changed.replace(state.find(layers), layers.size(), other_layers));
    refused("state.json: expected the state of a compression, found something else");
  }
  for (const char* text : {"[]", "{}", R"({"format": "twofour compress 1", "layers": 1, "run": 3})"}) {
    write_text(work / "state.json", text);
    refused("state.json: expected the state of a compression, found something else");
  }
  CHECK(read_text(model.collect(input, recipe, "work")) == whole);
}

}  // namespace compress_test
}  // namespace twofour
