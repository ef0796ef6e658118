#include "lib/jobs/compress/compress.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <random>
#include <set>

#include "kernels/floats/device_vectors.h"
#include "lib/base/io/file.h"
#include "lib/jobs/compress/layer_entries.h"
#include "lib/jobs/convert/convert.h"
#include "lib/recipe/statistics/statistics.h"
#include "lib/write/transform/open_to_convert.h"
#include "tests/support/checkpoint_builder.h"
#include "tests/support/device/device.h"
#include "tests/support/models/decoder_golden.h"
#include "tests/support/scratch.h"

namespace twofour {
namespace compress_on_cuda_test {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kWindows = 12, kLength = 32;

struct CompressedModel {
  explicit CompressedModel(const char* name) {
    write_decoder_checkpoint(read_decoder_golden(golden_folder(), name), scratch / "model");
    if (Decoder::open(scratch / "model").head_group()) rule.selection.also = parse_patterns({"lm_head"});
  }
  /// A weight for each token of each linear; every fifth one is 0.
  void write_token_weights() {
    const Decoder model = Decoder::open(scratch / "model");
    Tensors file;
    const auto add = [&](const std::string& linear) {
      std::vector<float> w(kWindows * kLength);
      for (size_t i = 0; i < w.size(); ++i) w[i] = static_cast<float>((i * linear.size() + i / 7) % 5) / 3.0f;
      TensorData t{linear + ".token_weights", DType::kF32, {kWindows, kLength}, {}};
      t.bytes.resize(w.size() * sizeof(float));
      std::memcpy(t.bytes.data(), w.data(), t.bytes.size());
      file.push_back(std::move(t));
    };
    for (int64_t layer = 0; layer < model.shape().layers; ++layer) {
      for (const InputGroup& group : model.input_groups(layer)) {
        for (const std::string& linear : group.linears) add(linear);
      }
    }
    if (const auto head = model.head_group()) add(head->linears.front());
    write_safetensors(scratch / "weights.safetensors", file);
    token_weights = scratch / "weights.safetensors";
  }
  static std::vector<std::vector<int32_t>> windows() {
    std::vector<std::vector<int32_t>> made;
    for (int64_t w = 0; w < kWindows; ++w) {
      made.emplace_back();
      for (int64_t i = 0; i < kLength; ++i)
        made.back().push_back(static_cast<int32_t>((i * i + 7 * w + i / 3) % 48));
    }
    return made;
  }
  /// -> the statistics file. The run ends before each of `stops`, and another one resumes it.
  fs::path collect(const std::string& name, Sequential sequential, Device device,
                   const std::vector<int64_t>& stops = {}) const {
    std::vector<int64_t> ends = stops;
    ends.push_back(INT64_MAX);
    for (const int64_t end : ends) {
      CompressInput input;
      input.text = "squares";
      input.sequential = sequential;
      input.token_weights = token_weights;
      input.windows = windows();
      Compression compression(scratch / "model", Recipe(rule), input, {best_isa(), device}, 2);
      if (device == Device::cuda) compression.use_cuda();
      Progress progress;
      compression.collect(scratch / name, progress, end);
    }
    return Compression::statistics_of(scratch / name);
  }

  Scratch scratch;
  Rule rule{.to = "quantize"};
  fs::path token_weights;
};

double relative(const std::vector<float>& found, const std::vector<float>& expected) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    difference += std::pow(static_cast<double>(found[i]) - static_cast<double>(expected[i]), 2);
    size += std::pow(static_cast<double>(expected[i]), 2);
  }
  return size == 0 ? std::sqrt(difference) : std::sqrt(difference / size);
}

/// Sums x x' of the inputs of each group in double.
struct GroupSums : LayerWatcher {
  explicit GroupSums(const std::vector<InputGroup>& groups_) : groups(groups_), sums(groups.size()) {}
  void see_input(size_t group, std::span<const float> x, std::span<const int64_t>) override {
    const auto k = static_cast<size_t>(groups[group].k);
    std::vector<double>& to = sums[group];
    to.resize(k * k);
    for (size_t row = 0; row < x.size() / k; ++row) {
      for (size_t i = 0; i < k; ++i) {
        for (size_t j = 0; j < k; ++j)
          to[i * k + j] += static_cast<double>(x[row * k + i]) * static_cast<double>(x[row * k + j]);
      }
    }
  }
  void see_expert(int64_t, double) override {}
  const std::vector<InputGroup>& groups;
  std::vector<std::vector<double>> sums;
};

/// The relative errors of Hessians against the inputs of the artifact that they make, on the CPU, sorted.
/// Experts are left out, since a token near a tie may reach another one on the device.
std::vector<double> errors_of_artifact(const CompressedModel& model, const fs::path& statistics) {
  const auto file = std::make_shared<const Statistics>(Statistics::open(statistics));
  const Recipe recipe = with_statistics(Recipe(model.rule), file, file->hash().hex());
  const Checkpoint source = open_to_convert(model.scratch / "model", recipe);
  Progress progress;
  convert(source, make_plan(source, recipe), model.scratch / "artifact", {}, progress);
  const Decoder compressed = Decoder::open(model.scratch / "artifact");
  std::vector<int32_t> ids;
  std::vector<SequencePart> parts;
  for (const auto& window : model.windows()) ids.insert(ids.end(), window.begin(), window.end());
  for (int64_t w = 0; w < kWindows; ++w) parts.push_back({kLength, 0, nullptr, ids.data() + w * kLength});
  std::vector<float> hidden(ids.size() * static_cast<size_t>(compressed.shape().residual()));
  compressed.embed(ids, hidden);
  std::vector<double> errors;
  for (int64_t layer = 0; layer < compressed.shape().layers; ++layer) {
    GroupSums seen(compressed.input_groups(layer));
    compressed.run_layer(layer, parts, hidden, &seen);
    for (size_t g = 0; g < seen.groups.size(); ++g) {
      const StatisticsEntry* entry = file->find(seen.groups[g].linears.front());
      if (entry == nullptr || !seen.groups[g].block.empty()) continue;
      std::vector<float> mean;
      for (const double v : seen.sums[g]) mean.push_back(static_cast<float>(v / (kWindows * kLength)));
      errors.push_back(relative(file->read_hessian(*entry), mean));
    }
  }
  std::sort(errors.begin(), errors.end());
  return errors;
}

/// The relative errors of all Hessians of a file, sorted.
std::vector<double> errors_of(const fs::path& found, const fs::path& expected) {
  const Statistics a = Statistics::open(found), b = Statistics::open(expected);
  REQUIRE(a.entries().size() == b.entries().size());
  std::vector<double> errors;
  for (size_t i = 0; i < a.entries().size(); ++i) {
    const StatisticsEntry &own = a.entries()[i], &other = b.entries()[i];
    CHECK(own.name == other.name);
    if (own.count != other.count || own.count == 0) continue;  // an expert that other tokens reach
    errors.push_back(relative(a.read_hessian(own), b.read_hessian(other)));
  }
  std::sort(errors.begin(), errors.end());
  return errors;
}

TEST_CASE("differences, scaled rows and the largest number are those of the CPU") {
  if (no_gpu()) return;
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  for (const int64_t width : {1, 33, 576}) {
    const int64_t m = 1001, count = m * width;
    std::vector<float> x(static_cast<size_t>(count)), y(x.size()), factors(static_cast<size_t>(m));
    for (std::vector<float>* some : {&x, &y, &factors}) {
      for (float& v : *some) v = normal(random);
    }
    x[0] = std::numeric_limits<float>::quiet_NaN();
    x[x.size() - 1] = -17;
    const cuda::DeviceStream stream;
    const cuda::DeviceMemory a(x), b(y), f(factors), most(std::vector<float>{0.5f});
    cuda::find_largest(a.as<float>(), count, most.as<float>(), stream.get());
    cuda::subtract_floats(a.as<float>(), b.as<float>(), count, b.as<float>(), stream.get());
    cuda::scale_rows(b.as<float>(), f.as<float>(), m, width, stream.get());
    stream.synchronize();
    CHECK(most.download<float>().front() == 17);
    const std::vector<float> found = b.download<float>();
    for (size_t i = 1; i < x.size(); ++i)
      REQUIRE(found[i] == (x[i] - y[i]) * factors[i / static_cast<size_t>(width)]);
    CHECK(std::isnan(found[0]));
  }
}

TEST_CASE("what outputs lack is summed on the device as on the CPU") {
  if (no_gpu()) return;
  const CompressedModel model("llama");
  const Decoder dense = Decoder::open(model.scratch / "model");
  const std::vector<InputGroup>& groups = dense.input_groups(0);
  std::set<std::string> linears;
  for (const InputGroup& g : groups) linears.insert(g.linears.begin(), g.linears.end());
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  const auto draw = [&](int64_t count) {
    std::vector<float> x(static_cast<size_t>(count));
    for (float& v : x) v = normal(random);
    return x;
  };
  DeviceSums device;
  DeviceScratch scratch(&device.stream());
  for (const LayerEntry& entry : layer_entries(dense, groups, linears, false, true)) {
    CAPTURE(entry.planned.name);
    EntrySums on_cpu, on_device(&device, &scratch);
    for (const int64_t rows : {37, 5}) {
      const std::vector<float> x = draw(rows * entry.planned.k), d = draw(rows * entry.planned.k),
                               r = draw(rows * dense.shape().hidden);
      const auto add = [&](const cuda::DeviceStream* stream, EntrySums& sums) {
        SeenInputs of_compressed(groups.size(), stream), of_dense(groups.size(), stream);
        for (SeenInputs* seen : {&of_compressed, &of_dense}) {
          seen->begin(std::vector<bool>(groups.size(), true));
          seen->see_input(entry.group, seen == &of_dense ? d : x, {});
        }
        FloatArray residual(stream);
        residual.assign_from_host(r);
        add_batch(entry, {&of_compressed, &of_dense, &residual, {}}, dense, sums);
        device.wait();
      };
      add(nullptr, on_cpu);
      add(&device.stream(), on_device);
    }
    on_cpu.finish();
    on_device.finish();
    CHECK((!on_cpu.differences.empty() || !on_cpu.outputs.empty()));
    REQUIRE(on_device.differences.size() == on_cpu.differences.size());
    REQUIRE(on_device.outputs.size() == on_cpu.outputs.size());
    CHECK(relative(on_device.differences, on_cpu.differences) < 1e-4);
    CHECK(relative(on_device.outputs, on_cpu.outputs) < 1e-4);
  }
}

TEST_CASE("sums on the device are those of the CPU, and a run that is resumed has the same bytes") {
  if (no_gpu()) return;
  for (const char* name : {"llama", "qwen3_moe", "qwen2_moe", "qwen3_next", "deepseek_v3", "gpt_oss"}) {
    for (const bool guided : {false, true}) {
      CAPTURE(name);
      CAPTURE(guided);
      CompressedModel model(name);
      if (guided) model.write_token_weights();
      // Of the model as it is, no choice of weights differs.
      const auto errors = errors_of(model.collect("cuda-none", Sequential::kNone, Device::cuda),
                                    model.collect("cpu-none", Sequential::kNone, Device::cpu));
      REQUIRE_FALSE(errors.empty());
      MESSAGE(std::string(name), ", guided ", guided, ": ", errors.back());
      CHECK(errors.back() < 1e-3);
      // Group by group, weights near a tie differ from the CPU's, and so do inputs behind them.
      const fs::path whole = model.collect("whole", Sequential::kGroups, Device::cuda);
      if (!guided) {
        const std::vector<double> own = errors_of_artifact(model, whole);
        REQUIRE_FALSE(own.empty());
        MESSAGE(std::string(name), ", group by group: ", own[own.size() / 2], " and ", own.back());
        CHECK(own[own.size() / 2] < 1e-3);
        if (std::string(name) == "llama") CHECK(own.back() < 1e-3);
      }
      CHECK(
          (read_text(model.collect("parts", Sequential::kGroups, Device::cuda, {1, 2})) == read_text(whole)));
    }
  }
}

}  // namespace
}  // namespace compress_on_cuda_test
}  // namespace twofour
