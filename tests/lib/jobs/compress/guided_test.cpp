#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>
#include <string>

#include "formats/error.h"
#include "lib/base/io/file.h"
#include "lib/jobs/compress/compress.h"
#include "lib/recipe/statistics/statistics.h"
#include "lib/run/collect/collect.h"
#include "tests/support/message.h"
#include "tests/support/models/decoder_golden.h"
#include "tests/support/scratch.h"

namespace twofour {
namespace {

namespace fs = std::filesystem;

struct GuidedModel {
  explicit GuidedModel(const std::string& name) {
    const DecoderGolden golden = read_decoder_golden(fs::path(TWOFOUR_GOLDEN_DIR) / "decoder", name);
    write_decoder_checkpoint(golden, scratch / "model");
    input.text = "squares";
    input.sequential = Sequential::kNone;
    input.is_guided = true;
    for (int32_t w = 0; w < 8; ++w) {
      input.windows.emplace_back();
      for (int32_t i = 0; i < 24; ++i) input.windows.back().push_back((i * i + 7 * w + i / 3) % 48);
    }
  }
  fs::path collect(const CompressInput& by, const std::string& name, int64_t end = INT64_MAX) const {
    Compression compression(scratch / "model", Recipe(Rule{.to = "quantize"}), by, {best_isa()}, 2);
    Progress progress;
    compression.collect(scratch / name, progress, end);
    return Compression::statistics_of(scratch / name);
  }
  Scratch scratch;
  CompressInput input;
};

void same_hessian(const Statistics& a, const Statistics& b, const std::string& linear) {
  CAPTURE(linear);
  const std::vector<float> x = a.read_hessian(*a.find(linear)), y = b.read_hessian(*b.find(linear));
  double off = 0, all = 0;
  REQUIRE(x.size() == y.size());
  for (size_t i = 0; i < x.size(); ++i) {
    off += std::pow(static_cast<double>(x[i]) - static_cast<double>(y[i]), 2);
    all += std::pow(static_cast<double>(y[i]), 2);
  }
  CHECK(std::sqrt(off / all) < 1e-5);
}

TEST_CASE("guided tokens of the model as it is have the sums of stats collect") {
  const GuidedModel model("qwen3_moe");
  const Statistics ours = Statistics::open(model.collect(model.input, "work"));
  CHECK(ours.metadata("weighting") == "guided");
  const Decoder decoder = Decoder::open(model.scratch / "model");
  Progress progress;
  collect_statistics(decoder, {model.input.windows, 0, "squares", {.guided = true}},
                     model.scratch / "collected", progress);
  const Statistics theirs = Statistics::open(model.scratch / "collected");
  size_t compared = 0;
  for (const StatisticsEntry& e : theirs.entries()) {
    // Gate and up of all experts share an entry there, and have entries of their own here.
    if (e.members.size() > 1 || e.count == 0 || ours.find(e.name) == nullptr) continue;
    CHECK(ours.find(e.name)->name == e.name);
    same_hessian(ours, theirs, e.name);
    ++compared;
  }
  CHECK(compared > 20);
}

TEST_CASE("guided runs have the bytes of their weights as a file, go on, and refuse damaged weights") {
  const GuidedModel model("qwen2_moe");
  CompressInput input = model.input;
  input.sequential = Sequential::kGroups;
  const fs::path whole = model.collect(input, "whole");
  const Statistics ours = Statistics::open(whole);

  CompressInput by_file = input;
  by_file.is_guided = false;
  by_file.token_weights = model.scratch / "weights.safetensors";
  fs::copy(model.scratch / "whole" / "token-weights.safetensors", by_file.token_weights);
  const Statistics theirs = Statistics::open(model.collect(by_file, "by-file"));
  REQUIRE(ours.entries().size() == theirs.entries().size());
  for (size_t i = 0; i < ours.entries().size(); ++i)
    CHECK(ours.read_hessian(ours.entries()[i]) == theirs.read_hessian(theirs.entries()[i]));

  model.collect(input, "work", 1);
  CHECK(Compression::is_work_folder(model.scratch / "work"));
  fs::copy(model.scratch / "work", model.scratch / "kept");
  CHECK(read_text(model.collect(input, "work")) == read_text(whole));

  const fs::path weights = model.scratch / "kept" / "token-weights.safetensors";
  std::string bytes = read_text(weights);
  bytes[bytes.size() - 3] = static_cast<char>(bytes[bytes.size() - 3] ^ 1);
  write_text(weights, bytes);
  contains(message_of([&] { model.collect(input, "kept"); }), "guided_weights changed");
}

TEST_CASE("guided tokens need blocks with a backward pass, and their memory and disk are stated") {
  const GuidedModel model("llama");
  CompressInput plain = model.input;
  plain.is_guided = false;
  const auto needs = [&](const CompressInput& by) {
    return Compression(model.scratch / "model", Recipe(Rule{.to = "quantize"}), by, {best_isa()}, 2).needs();
  };
  model.collect(model.input, "work");
  CHECK(needs(model.input).work_bytes > fs::file_size(model.scratch / "work" / "token-weights.safetensors"));
  CHECK(needs(model.input).peak_memory >= needs(plain).peak_memory);
  const GuidedModel hybrid("qwen3_next");
  contains(message_of([&] { hybrid.collect(hybrid.input, "work"); }), "whose linear attention has none");
}

}  // namespace
}  // namespace twofour
