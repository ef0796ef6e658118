#include "lib/jobs/recover/recover.h"

#include <doctest/doctest.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "formats/error.h"
#include "lib/jobs/recover/tuned_values.h"
#include "lib/recipe/artifact/open_unpacked.h"
#include "lib/run/collect/backward_pass.h"
#include "tests/support/conversion.h"
#include "tests/support/message.h"
#include "tests/support/models/decoder_golden.h"
#include "tests/support/scratch.h"

namespace twofour {
namespace {

namespace fs = std::filesystem;

/// A golden model whose norms are F32, and the same model in NVFP4 or in a layout.
struct RecoveredModel {
  RecoveredModel(const std::string& name, const std::string& to) {
    const DecoderGolden golden = read_decoder_golden(fs::path(TWOFOUR_GOLDEN_DIR) / "decoder", name);
    write_decoder_checkpoint(golden, source, {}, [](Tensors& tensors) {
      for (TensorData& t : tensors) {
        if (!t.name.ends_with("norm.weight")) continue;
        std::vector<uint8_t> wide;
        for (size_t i = 0; i < t.bytes.size(); i += 2)
          wide.insert(wide.end(), {0, 0, t.bytes[i], t.bytes[i + 1]});
        t.dtype = DType::kF32, t.bytes = wide;
      }
    });
    convert(source, artifact, OneRule{Rule{.to = to}});
    fs::create_directories(work);
    for (int32_t w = 0; w < 9; ++w) {
      windows.emplace_back();
      for (int32_t i = 0; i < 20; ++i) windows.back().push_back((i * i + 7 * w + i / 3) % 48);
    }
  }
  Recovery recover(int64_t passes, int threads = 2) const {
    const int before = omp_get_max_threads();
    omp_set_num_threads(threads);
    Progress progress;
    const Recovery r = twofour::recover({source, artifact, work, windows, passes}, progress);
    omp_set_num_threads(before);
    return r;
  }
  Scratch scratch;
  fs::path source = scratch / "model", artifact = scratch / "artifact", work = scratch / "work";
  std::vector<std::vector<int32_t>> windows;
};

using Windows = std::vector<std::vector<int32_t>>;

/// Logarithms of the probabilities of all tokens of windows, in double from a model's logits.
std::vector<double> slow_probabilities(const Decoder& model, const Windows& windows) {
  std::vector<double> all;
  const auto vocabulary = static_cast<size_t>(model.shape().vocabulary);
  for (const auto& window : windows) {
    const std::vector<float> logits = DecoderSequence(model).append(window, true);
    for (size_t begin = 0; begin < logits.size(); begin += vocabulary) {
      double sum = 0;
      for (size_t i = 0; i < vocabulary; ++i) sum += std::exp(static_cast<double>(logits[begin + i]));
      for (size_t i = 0; i < vocabulary; ++i)
        all.push_back(static_cast<double>(logits[begin + i]) - std::log(sum));
    }
  }
  return all;
}

/// The mean KL(p || model) of all tokens of windows.
double slow_divergence(const std::vector<double>& p, const Decoder& model, const Windows& windows) {
  const std::vector<double> q = slow_probabilities(model, windows);
  double sum = 0;
  for (size_t i = 0; i < p.size(); ++i) sum += std::exp(p[i]) * (p[i] - q[i]);
  return sum / static_cast<double>(q.size()) * static_cast<double>(model.shape().vocabulary);
}

/// The artifact's model, with element `i` of a tensor of floats times `factor`.
double divergence_with(const RecoveredModel& m, const std::string& tensor, size_t i, double add, float factor,
                       const std::vector<double>& expected, const Windows& windows) {
  Checkpoint shown = open_source(m.artifact);
  auto bytes = std::make_shared<TensorBytes>();
  std::vector<uint8_t>& own = (*bytes)[tensor];
  own.resize(shown.tensors()[*shown.find(tensor)].bytes());
  shown.read(*shown.find(tensor), 0, own);
  float value = 0;
  std::memcpy(&value, &own[i * sizeof value], sizeof value);
  value = static_cast<float>((static_cast<double>(value) + add) * static_cast<double>(factor) - add);
  std::memcpy(&own[i * sizeof value], &value, sizeof value);
  const Decoder model(with_substituted(std::move(shown), bytes));
  return slow_divergence(expected, model, windows);
}

TEST_CASE("gradients of norms and scales are the differences of the divergence, for each kind of family") {
  struct Case {
    const char *name, *to;
  };
  for (const Case& c : {Case{"llama", "quantize"}, Case{"qwen3_moe", "v7"}, Case{"gemma3-linear", "quantize"},
                        Case{"deepseek_v2", "quantize"}, Case{"olmoe", "g8"}, Case{"gpt_oss", "quantize"}}) {
    CAPTURE(std::string(c.name));
    const RecoveredModel m(c.name, c.to);
    const Windows windows(m.windows.begin(), m.windows.begin() + 2);
    const Decoder source = Decoder::open(m.source), model = Decoder::open(m.artifact);
    const Checkpoint stored = Checkpoint::open(m.artifact);
    const TunedValues values(stored, model);
    const std::vector<double> offsets(values.size());
    TunedGradients gradients(model, values, offsets);
    BackwardPass pass(model, windows, m.work / "streams-test");
    pass.run_forward([](size_t) {});
    const auto watch = [&](const TokenBatch&) { return &gradients; };
    size_t row = 0;
    const auto rows_of = [&](const TokenBatch& b) {
      std::vector<float> rows(b.rows * static_cast<size_t>(source.shape().residual()));
      const std::vector<int32_t> ids = join_windows(windows);
      source.embed(std::span(ids).subspan(b.row, b.rows), rows);
      for (int64_t layer = 0; layer < source.shape().layers; ++layer)
        source.run_layer(layer, parts_of(b, windows), rows);
      row += b.rows;
      return rows;
    };
    const double loss = pass.run_head(source, rows_of, watch, [](const TokenBatch&) {});
    for (int64_t layer = model.shape().layers - 1; layer >= 0; --layer)
      pass.run_layer(layer, watch, [](const TokenBatch&) {});
    const std::vector<double> probabilities = slow_probabilities(source, windows);
    const double expected = slow_divergence(probabilities, model, windows);
    CHECK(std::abs(loss / static_cast<double>(row) - expected) < 1e-5 * expected);

    // Some numbers of each norm, and the scale of each linear. Where a change sends tokens to other experts,
    // the loss is not smooth: differences of two sizes then disagree, and the number is left out.
    constexpr double kStep = 0.004;
    std::mt19937_64 random(1);
    double off = 0, all = 0;
    size_t compared = 0, smooth = 0;
    const auto compare = [&](double found, const std::string& tensor, size_t i, double add, double power) {
      const auto difference = [&](double step) {
        const auto at = [&](double side) {
          return divergence_with(m, tensor, i, add, static_cast<float>(std::pow(1 + side, power)),
                                 probabilities, windows);
        };
        return (at(step) - at(-step)) / (2 * step);
      };
      const double want = difference(kStep), other = difference(kStep / 2);
      ++compared;
      if (std::abs(want - other) > 0.02 * std::abs(want) + 2e-5) return;
      ++smooth;
      off += std::pow(found / static_cast<double>(row) - want, 2);
      all += want * want;
    };
    const Checkpoint& shown = model.checkpoint();
    for (size_t t = 0; t < shown.tensors().size(); ++t) {
      const auto norm = values.find_norm(t);
      if (!norm) continue;
      const auto [first, numbers] = *norm;
      float stored_value = 0;
      for (int some = 0; some < 2; ++some) {
        const size_t i = random() % numbers.size();
        std::vector<uint8_t> bytes(sizeof(float));
        shown.read(t, i * sizeof(float), bytes);
        std::memcpy(&stored_value, bytes.data(), sizeof stored_value);
        const double add = numbers[i] - static_cast<double>(stored_value);
        compare(gradients.sums()[first + i], shown.tensors()[t].name, i, std::round(add), 1);
      }
    }
    for (const Nvfp4Linear& linear : shown.nvfp4_modules()) {
      const auto scale = values.find_scale(linear.name);
      // Scales of several linears change together.
      const auto alike = [&](const Nvfp4Linear& other) { return values.find_scale(other.name) == scale; };
      if (!scale || std::count_if(shown.nvfp4_modules().begin(), shown.nvfp4_modules().end(), alike) > 1)
        continue;
      compare(gradients.sums()[*scale], shown.tensors()[linear.global_scale].name, 0, 0,
              linear.dialect->divides ? -1 : 1);
    }
    CHECK(compared > 8);
    CHECK(2 * smooth > compared);
    MESSAGE(std::string(c.name), ": ", smooth, " of ", compared, " gradients, relative difference ",
            std::sqrt(off / all));
    CHECK(std::sqrt(off / all) < 0.02);
  }
}

TEST_CASE("linears that engines join share an offset, and a layout's gate and up one scale") {
  const RecoveredModel plain("llama", "quantize"), layout("qwen3_moe", "v7");
  const Decoder a = Decoder::open(plain.artifact), b = Decoder::open(layout.artifact);
  const Checkpoint stored_a = Checkpoint::open(plain.artifact), stored_b = Checkpoint::open(layout.artifact);
  const TunedValues of_a(stored_a, a), of_b(stored_b, b);
  const std::string at = "model.layers.1.";
  CHECK(of_a.find_scale(at + "self_attn.q_proj") == of_a.find_scale(at + "self_attn.k_proj"));
  CHECK(of_a.find_scale(at + "mlp.gate_proj") == of_a.find_scale(at + "mlp.up_proj"));
  CHECK(of_a.find_scale(at + "self_attn.o_proj") != of_a.find_scale(at + "self_attn.q_proj"));
  CHECK(of_a.find_scale(at + "mlp.down_proj") != of_a.find_scale("model.layers.0.mlp.down_proj"));
  const std::string expert = at + "mlp.experts.2.";
  CHECK(of_b.find_scale(expert + "gate_proj") == of_b.find_scale(expert + "up_proj"));
  CHECK(of_b.find_scale(expert + "gate_proj") != of_b.find_scale(at + "mlp.experts.1.gate_proj"));
  CHECK_FALSE(of_b.find_scale(at + "mlp.gate").has_value());
  CHECK(of_b.is_scale(at + "mlp.experts.w13_global_scale"));

  // Without offsets all bytes stay; with one, only what it belongs to changes.
  std::vector<double> offsets(of_b.size());
  const TensorBytes before = of_b.stored(offsets);
  for (const auto& [name, bytes] : before) {
    std::vector<uint8_t> own(bytes.size());
    stored_b.read(*stored_b.find(name), 0, own);
    CHECK(own == bytes);
  }
  offsets[*of_b.find_scale(expert + "up_proj")] = 0.5;
  const TensorBytes after = of_b.stored(offsets);
  for (const auto& [name, bytes] : before) {
    if (name != at + "mlp.experts.w13_global_scale") {
      CHECK(after.at(name) == bytes);
      continue;
    }
    float was = 0, is = 0;
    std::memcpy(&was, &bytes[2 * sizeof was], sizeof was);
    std::memcpy(&is, &after.at(name)[2 * sizeof is], sizeof is);
    CHECK(is == 1.5f * was);
    CHECK(std::equal(bytes.begin(), bytes.begin() + 8, after.at(name).begin()));
  }
}

TEST_CASE("recovery lowers the divergence of held-out windows, for any number of threads, and goes on") {
  const RecoveredModel m("llama", "quantize");
  const Recovery one = m.recover(4, 1);
  CHECK(one.kept > 0);
  CHECK(one.after < one.before);
  CHECK(one.held_out == 20);
  CHECK(one.tokens == 160);
  REQUIRE(one.values != nullptr);
  CHECK(one.values->size() == one.tuned.size());

  // The losses are those of the held-out window.
  const Windows held{m.windows.back()};
  const std::vector<double> source = slow_probabilities(Decoder::open(m.source), held);
  const double before = slow_divergence(source, Decoder::open(m.artifact), held);
  CHECK(std::abs(before - one.before) < 1e-5 * before);
  const Decoder learned(with_substituted(open_source(m.artifact), one.values));
  const double after = slow_divergence(source, learned, held);
  CHECK(std::abs(after - one.after) < 1e-4 * after);

  // A state of all passes gives the same again; one of fewer passes is another's.
  const Recovery again = m.recover(4, 3);
  CHECK(*again.values == *one.values);
  fs::remove(m.work / kRecoveryState);
  const Recovery three = m.recover(4, 3);
  CHECK(*three.values == *one.values);
  CHECK(three.after == one.after);
  CHECK(m.recover(1).passes == 1);
}

TEST_CASE("recovery of an artifact that equals its source changes nothing") {
  const RecoveredModel m("llama", "quantize");
  Progress progress;
  // The artifact as its own source
  const Recovery r = recover({m.artifact, m.artifact, m.work, m.windows, 3}, progress);
  CHECK(r.kept == 0);
  CHECK(r.tuned.empty());
  CHECK(r.after == r.before);
  CHECK(r.before < 1e-9);
}

TEST_CASE("recovery is refused without a backward pass, and with a single window") {
  const auto open = [](const std::string& name) { return RecoveredModel(name, "quantize"); };
  const RecoveredModel hybrid = open("qwen3_next"), plain = open("llama");
  contains(message_of([&] { check_recovery(Decoder::open(hybrid.source), hybrid.windows); }),
           "whose linear attention has none");
  contains(message_of([&] { check_recovery(Decoder::open(plain.source), {plain.windows.front()}); }),
           "expected two windows of the text or more, of which one is held out, found 1");
  CHECK(held_out_windows(2) == 1);
  CHECK(held_out_windows(128) == 16);
}

}  // namespace
}  // namespace twofour
