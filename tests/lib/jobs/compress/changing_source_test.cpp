// A model that changes while it is compressed is refused before another layer is kept.
#include <doctest/doctest.h>

#include <chrono>
#include <cstring>
#include <fstream>
#include <functional>

#include "lib/base/io/file.h"
#include "lib/jobs/compress/compress.h"
#include "tests/support/message.h"
#include "tests/support/models/decoder_golden.h"
#include "tests/support/scratch.h"

namespace twofour {
namespace changing_source_test {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kWindows = 4, kLength = 32;

/// A model with a tokenizer, and weights of its tokens for every linear.
struct ChangingModel {
  ChangingModel()
      : golden(read_decoder_golden(fs::path(TWOFOUR_GOLDEN_DIR) / "decoder", "llama")),
        model(scratch / "model"),
        weights(scratch / "weights.safetensors"),
        work(scratch / "work") {
    write_decoder_checkpoint(golden, model);
    std::ofstream(model / "tokenizer.json") << "{}";
    write_decoder_checkpoint(golden, scratch / "other", {}, [](Tensors& tensors) {
      for (TensorData& t : tensors) {
        for (size_t i = 1; i < t.bytes.size(); i += 2) t.bytes[i] ^= 0x80;
      }
    });
    fs::last_write_time(scratch / "other" / "model.safetensors",
                        fs::last_write_time(model / "model.safetensors"));
    const Decoder decoder = Decoder::open(model);
    Tensors file;
    for (int64_t layer = 0; layer < decoder.shape().layers; ++layer) {
      for (const InputGroup& group : decoder.input_groups(layer)) {
        for (const std::string& linear : group.linears) {
          file.push_back({linear + ".token_weights", DType::kF32, {kWindows, kLength}, {}});
          const std::vector<float> ones(kWindows * kLength, 1.0f);
          file.back().bytes.resize(ones.size() * sizeof(float));
          std::memcpy(file.back().bytes.data(), ones.data(), file.back().bytes.size());
        }
      }
    }
    write_safetensors(weights, file);
  }
  Compression open(Sequential sequential) const {
    CompressInput input;
    input.text = "squares";
    input.sequential = sequential;
    input.token_weights = weights;
    for (int32_t w = 0; w < kWindows; ++w) {
      input.windows.emplace_back();
      for (int32_t i = 0; i < kLength; ++i) input.windows.back().push_back((i * i + 7 * w + i / 3) % 48);
    }
    return Compression(model, Recipe(Rule{.to = "quantize"}), input, {best_isa()}, 2);
  }

  Scratch scratch;
  DecoderGolden golden;
  fs::path model, weights, work;
};

struct Change {
  const char* file;
  std::function<void(const ChangingModel&)> make;
};

const Change kChanges[] = {
    {"model.safetensors",
     [](const ChangingModel& m) {
       fs::rename(m.scratch / "other" / "model.safetensors", m.model / "model.safetensors");
     }},
    {"model.safetensors",
     [](const ChangingModel& m) {
       std::fstream(m.model / "model.safetensors", std::ios::in | std::ios::out)
           .seekp(-1, std::ios::end)
           .put(1);
     }},
    {"model.safetensors", [](const ChangingModel& m) { fs::remove(m.model / "model.safetensors"); }},
    {"config.json",
     [](const ChangingModel& m) {
       fs::rename(m.model, m.scratch / "before");
       fs::rename(m.scratch / "other", m.model);
     }},
    {"config.json",
     [](const ChangingModel& m) {
       fs::last_write_time(m.model / "config.json",
                           fs::last_write_time(m.model / "config.json") + std::chrono::seconds(1));
     }},
    {"tokenizer.json",
     [](const ChangingModel& m) { std::ofstream(m.model / "tokenizer.json", std::ios::app) << " "; }},
    {"model-2.safetensors",
     [](const ChangingModel& m) { write_safetensors(m.model / "model-2.safetensors", {}); }},
    {"model.safetensors.index.json",
     [](const ChangingModel& m) { std::ofstream(m.model / "model.safetensors.index.json") << "{}"; }},
    {"weights.safetensors",
     [](const ChangingModel& m) {
       fs::copy(m.weights, m.scratch / "w");
       fs::rename(m.scratch / "w", m.weights);
     }},
};

}  // namespace

TEST_CASE(
    "a file of the model that changes between two layers is one refusal, and no layer is kept behind it") {
  for (const Sequential sequential : {Sequential::kNone, Sequential::kLayers, Sequential::kGroups}) {
    for (const Change& change : kChanges) {
      for (const int64_t whole : {0, 1}) {
        CAPTURE(change.file);
        CAPTURE(whole);
        ChangingModel m;
        Compression compression = m.open(sequential);
        REQUIRE(compression.layers() > 1);
        Progress progress;
        if (whole > 0) compression.collect(m.work, progress, whole);
        change.make(m);
        const std::string message = message_of([&] { compression.collect(m.work, progress); });
        contains(message, std::string(change.file) + ": expected ");
        contains(message, "while ");
        CHECK(Compression::layers_done(m.work).value_or(0) == whole);
      }
    }
  }
}

TEST_CASE("a model that changes behind the last layer is found, too") {
  for (const Change& change : kChanges) {
    CAPTURE(change.file);
    ChangingModel m;
    Compression compression = m.open(Sequential::kGroups);
    Progress progress;
    compression.collect(m.work, progress);
    compression.check_unchanged();
    change.make(m);
    contains(message_of([&] { compression.check_unchanged(); }), std::string(change.file) + ": expected ");
  }
}

TEST_CASE("files of another name beside the model's directory are none of its business") {
  ChangingModel m;
  Compression compression = m.open(Sequential::kGroups);
  Progress progress;
  compression.collect(m.work, progress, 1);
  fs::remove(m.scratch / "other" / "model.safetensors");
  std::ofstream(m.model / ".config.json.swp") << "x";
  compression.collect(m.work, progress);
}

}  // namespace changing_source_test
}  // namespace twofour
