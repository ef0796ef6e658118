#include "lib/synth/synth.h"

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <map>

#include "formats/dialect.h"
#include "formats/e2m1.h"
#include "formats/e4m3.h"
#include "formats/error.h"
#include "formats/json.h"
#include "formats/safetensors.h"
#include "lib/base/io/file.h"
#include "lib/base/io/hash.h"
#include "lib/source/checkpoint/checkpoint.h"
#include "lib/source/checkpoint/index_file.h"
#include "lib/synth/weights.h"
#include "tests/support/dialects.h"
#include "tests/support/scratch.h"

namespace synth_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;

SynthResult make(const fs::path& directory, const SynthOptions& options) {
  Progress progress;
  const SynthResult result = synth(directory, options, progress);
  CHECK(progress.done == result.bytes);
  CHECK(progress.total == result.bytes);
  return result;
}

SynthOptions tiny(int jobs = 1) {
  SynthOptions options;
  options.vocab = 64;
  options.jobs = jobs;
  return options;
}

std::map<std::string, std::string> read_files(const fs::path& directory) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(directory)) {
    files[entry.path().filename().string()] = read_text(entry.path(), 1u << 30);
  }
  return files;
}

struct Tensor {
  TensorInfo info;
  std::string file, bytes;
  float scalar() const {
    REQUIRE(bytes.size() == sizeof(float));
    float value;
    std::memcpy(&value, bytes.data(), sizeof(value));
    return value;
  }
};

/// Every tensor of a checkpoint, read with the strict parser.
std::map<std::string, Tensor> read_tensors(const fs::path& directory) {
  std::map<std::string, Tensor> tensors;
  for (auto& [name, bytes] : read_files(directory)) {
    if (!name.ends_with(".safetensors")) continue;
    const std::span<const uint8_t> raw(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
    const uint64_t length = parse_safetensors_prefix(name, raw, bytes.size()),
                   data = kSafetensorsPrefix + length;
    const SafetensorsHeader header =
        parse_safetensors_header(name, std::string_view(bytes).substr(8, length), bytes.size() - data);
    CHECK(header.metadata == std::map<std::string, std::string>{{"format", "pt"}});
    for (const TensorInfo& t : header.tensors) {
      CHECK(tensors.emplace(t.name, Tensor{t, name, bytes.substr(data + t.begin, t.bytes())}).second);
    }
  }
  return tensors;
}

/// A module's weights, decoded slowly.
std::vector<float> decode(const std::map<std::string, Tensor>& tensors, const std::string& module,
                          const Nvfp4Dialect& d) {
  const Tensor &codes = tensors.at(module + d.codes), &scales = tensors.at(module + d.block_scale);
  const float global = global_scale_multiplier(d, tensors.at(module + d.global_scale).scalar());
  std::vector<float> weights(codes.bytes.size() * 2);
  REQUIRE(scales.bytes.size() * 16 == weights.size());
  for (size_t i = 0; i < weights.size(); ++i) {
    const unsigned code = static_cast<uint8_t>(codes.bytes[i / 2]) >> (i % 2 * 4) & 15u;
    weights[i] = e2m1_to_float(code) * e4m3_to_float(static_cast<uint8_t>(scales.bytes[i / 16])) * global;
  }
  return weights;
}

float largest_magnitude(const std::vector<float>& weights) {
  float amax = 0;
  for (const float w : weights) amax = std::max(amax, std::fabs(w));
  return amax;
}

/// Modules whose global scale the tensors hold.
std::vector<std::string> quantized_modules(const std::map<std::string, Tensor>& tensors,
                                           const Nvfp4Dialect& d) {
  std::vector<std::string> modules;
  for (const auto& [name, tensor] : tensors) {
    if (name.ends_with(d.global_scale))
      modules.push_back(name.substr(0, name.size() - strlen(d.global_scale)));
  }
  return modules;
}

/// The module that shares its global scale with `module`, or nothing.
std::string partner(const std::string& module) {
  for (const auto& [gate, up] : {std::pair{"gate_proj", "up_proj"}, std::pair{".w1", ".w3"}}) {
    if (module.ends_with(gate)) return module.substr(0, module.size() - strlen(gate)) + up;
  }
  return "";
}

}  // namespace

TEST_CASE("the same bytes for any number of jobs") {
  const Scratch scratch;
  SynthOptions options = tiny();
  options.max_shard_size = 20'000;
  CHECK(make(scratch.path / "1", options).shards > 3);
  const auto expected = read_files(scratch.path / "1");
  for (const int jobs : {2, 5}) {
    options.jobs = jobs;
    make(scratch.path / fmt::format("{}", jobs), options);
    CHECK((read_files(scratch.path / fmt::format("{}", jobs)) == expected));
  }
}

TEST_CASE("another seed gives other weights of the same shapes") {
  const Scratch scratch;
  SynthOptions options = tiny();
  make(scratch.path / "a", options);
  options.seed = 1;
  make(scratch.path / "b", options);
  const auto a = read_tensors(scratch.path / "a"), b = read_tensors(scratch.path / "b");
  REQUIRE(a.size() == b.size());
  for (const auto& [name, tensor] : a) {
    REQUIRE(b.count(name));
    CHECK(tensor.info.shape == b.at(name).info.shape);
    CHECK_MESSAGE(tensor.bytes != b.at(name).bytes, name);
  }
}

TEST_CASE("a tensor does not depend on how many layers, experts and shards there are") {
  const Scratch scratch;
  make(scratch.path / "all", tiny());
  SynthOptions options = tiny(2);
  options.layers = 1;
  options.experts = 3;
  options.max_shard_size = 1;  // a shard a tensor
  const SynthResult result = make(scratch.path / "some", options);
  CHECK(result.shards == result.tensors);
  const auto all = read_tensors(scratch.path / "all");
  for (const auto& [name, tensor] : read_tensors(scratch.path / "some")) {
    if (name.ends_with("mlp.gate.weight")) continue;  // has a row an expert
    CHECK_MESSAGE(tensor.bytes == all.at(name).bytes, name);
  }
}

TEST_CASE("weights are the same on any machine") {
  std::vector<float> weights(SynthWeights::kPiece);
  const SynthWeights source(24, "model.layers.0.mlp.experts.0.gate_proj");
  source.draw(3, 0, weights);
  const std::span<const uint8_t> bytes(reinterpret_cast<const uint8_t*>(weights.data()), weights.size() * 4);
  CHECK(hash_bytes(bytes).hex() == "75c848ee81fdddb1b2f6eebae3dd2cb6");
  CHECK(source.row_amax(3, SynthWeights::kPiece) == largest_magnitude(weights));
  // A piece is the same whatever is drawn before it.
  std::vector<float> piece(22);
  source.draw(3, 500, piece);
  CHECK(std::equal(piece.begin(), piece.end(), weights.begin() + 500));
}

TEST_CASE("the tiny checkpoint fits a test: below 300 kB with all its files") {
  const Scratch scratch;
  make(scratch.path / "t", SynthOptions{});
  size_t bytes = 0;
  for (const auto& [name, text] : read_files(scratch.path / "t")) bytes += text.size();
  CHECK(bytes < 300'000);
}

TEST_CASE("the index names every tensor, in order, with its file and the true size") {
  const Scratch scratch;
  SynthOptions options = tiny();
  options.max_shard_size = 30'000;
  const SynthResult result = make(scratch.path / "t", options);
  const auto tensors = read_tensors(scratch.path / "t");
  const std::string text = read_text(scratch.path / "t/model.safetensors.index.json");
  const IndexFile index = parse_index_file("index", text);
  uint64_t bytes = 0;
  for (const auto& [name, tensor] : tensors) bytes += tensor.bytes.size();
  CHECK(index.total_size == bytes);
  CHECK(result.bytes == bytes);
  CHECK(result.tensors == tensors.size());
  REQUIRE(index.entries.size() == tensors.size());
  for (const auto& entry : index.entries) CHECK(index.files[entry.file] == tensors.at(entry.tensor).file);
  auto expected = tensors.begin();
  const Json document = parse_json("index", text);
  for (const auto& [name, file] : document["weight_map"].items()) CHECK(name == (expected++)->first);
}

TEST_CASE("gate and up share global scales that fit their largest weight") {
  const Scratch scratch;
  for (const char* name : {"modelopt", "compressed-tensors"}) {
    const Nvfp4Dialect& d = dialect(name);
    SynthOptions options = tiny();
    options.dialect = name;
    make(scratch.path / name, options);
    const auto tensors = read_tensors(scratch.path / name);
    int pairs = 0;
    for (const std::string& module : quantized_modules(tensors, d)) {
      CAPTURE(module);
      if (module.ends_with("up_proj")) continue;
      float amax = largest_magnitude(decode(tensors, module, d));
      if (const std::string up = partner(module); !up.empty()) {
        ++pairs;
        for (const char* scale : {d.global_scale, d.input_scale}) {
          CHECK(tensors.at(module + scale).bytes == tensors.at(up + scale).bytes);
        }
        amax = std::max(amax, largest_magnitude(decode(tensors, up, d)));
      }
      const float global = global_scale_multiplier(d, tensors.at(module + d.global_scale).scalar());
      CHECK(amax == 6.0f * 448.0f * global);
      const float input = global_scale_multiplier(d, tensors.at(module + d.input_scale).scalar());
      CHECK(input * 2688 >= 3.99f);
      CHECK(input * 2688 <= 16.01f);
      CHECK(tensors.at(module + d.global_scale).info.shape.size() == (d.divides ? 1 : 0));
    }
    CHECK(pairs == 2 * 8);
  }
}

TEST_CASE("block scales are legal and far from the ends of their range") {
  const Scratch scratch;
  make(scratch.path / "t", tiny());
  for (const auto& [name, tensor] : read_tensors(scratch.path / "t")) {
    if (tensor.info.dtype != DType::kF8E4M3) continue;
    float least = 448, most = 0;
    for (const char c : tensor.bytes) {
      REQUIRE(e4m3_is_block_scale(static_cast<uint8_t>(c)));
      least = std::min(least, e4m3_to_float(static_cast<uint8_t>(c)));
      most = std::max(most, e4m3_to_float(static_cast<uint8_t>(c)));
    }
    CHECK_MESSAGE(least > 1, name);
    CHECK_MESSAGE(most > 100, name);
  }
}

TEST_CASE("weights have heavy tails and a standard deviation near 0.02") {
  const Scratch scratch;
  SynthOptions options = tiny(2);
  options.shape = "qwen3-moe";
  options.layers = 1;
  options.experts = 8;
  make(scratch.path / "q", options);
  const auto tensors = read_tensors(scratch.path / "q");
  for (const char* module : {"experts.0.gate_proj", "experts.7.down_proj"}) {
    double second = 0, fourth = 0;
    const auto weights = decode(tensors, std::string("model.layers.0.mlp.") + module, dialect("modelopt"));
    REQUIRE(weights.size() == 768 * 2048);
    for (const float w : weights) {
      second += double{w} * w;
      fourth += double{w} * w * w * w;
    }
    const double n = static_cast<double>(weights.size()), variance = second / n;
    CHECK(std::sqrt(variance) == doctest::Approx(0.02).epsilon(0.05));
    CHECK(fourth / n / (variance * variance) > 4.5);  // a normal distribution has 3
  }
}

TEST_CASE("both dialects hold the same weights, up to the reciprocal") {
  const Scratch scratch;
  SynthOptions options = tiny();
  make(scratch.path / "m", options);
  options.dialect = "compressed-tensors";
  make(scratch.path / "c", options);
  const auto m = read_tensors(scratch.path / "m"), c = read_tensors(scratch.path / "c");
  REQUIRE(m.size() == c.size());
  const Nvfp4Dialect &from = dialect("modelopt"), &to = dialect("compressed-tensors");
  const auto modules = quantized_modules(m, from);
  CHECK(modules == quantized_modules(c, to));
  for (const std::string& module : modules) {
    CHECK(m.at(module + from.codes).bytes == c.at(module + to.codes).bytes);
    CHECK(m.at(module + from.block_scale).bytes == c.at(module + to.block_scale).bytes);
    CHECK(1.0f / m.at(module + from.global_scale).scalar() == c.at(module + to.global_scale).scalar());
    CHECK(1.0f / m.at(module + from.input_scale).scalar() == c.at(module + to.input_scale).scalar());
  }
}

TEST_CASE("options that make no checkpoint are refused and leave nothing behind") {
  const Scratch scratch;
  Progress progress;
  const auto refuses = [&](auto change, const char* message) {
    SynthOptions options = tiny();
    change(options);
    CHECK_THROWS_WITH_AS(synth(scratch.path / "t", options, progress), doctest::Contains(message), Error);
    CHECK(!fs::exists(scratch.path / "t"));
  };
  refuses([](auto& o) { o.shape = "gpt-2"; }, "expected a shape of tiny, qwen3-next");
  refuses([](auto& o) { o.dialect = "awq"; },
          "expected a dialect of modelopt, compressed-tensors, found 'awq'");
  refuses([](auto& o) { o.experts = 1; }, "experts: expected 2 to");
  refuses([](auto& o) { o.layers = 0; }, "layers: expected 1 to");
  refuses([](auto& o) { o.vocab = 0; }, "vocab: expected 1 to");
  refuses([](auto& o) { o.shape = "llama", o.experts = 8; }, "llama is a dense model");
}

TEST_CASE("a directory that holds something is refused and stays as it is") {
  const Scratch scratch;
  write_text(scratch.path / "notes.txt", "mine");
  Progress progress;
  CHECK_THROWS_WITH_AS(synth(scratch.path, tiny(), progress), doctest::Contains("found files in it"), Error);
  CHECK(read_files(scratch.path) == std::map<std::string, std::string>{{"notes.txt", "mine"}});
}

TEST_CASE("a failure leaves nothing behind") {
  const Scratch scratch;
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  rlimit few = before;
  few.rlim_cur = 24;
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &few) == 0);
  SynthOptions options = tiny();
  options.max_shard_size = 1;  // more files than may be open
  Progress progress;
  CHECK_THROWS_AS(synth(scratch.path / "t", options, progress), Error);
  CHECK(::setrlimit(RLIMIT_NOFILE, &before) == 0);
  CHECK(!fs::exists(scratch.path / "t"));
}

TEST_CASE("headers only: the same headers and sizes, scales of one, holes for weights") {
  const Scratch scratch;
  SynthOptions options;
  options.max_shard_size = 50'000;
  make(scratch / "whole", options);
  options.headers_only = true;
  Progress progress;
  synth(scratch / "hollow", options, progress);
  const Checkpoint whole = Checkpoint::open(scratch / "whole"), hollow = Checkpoint::open(scratch / "hollow");
  REQUIRE(hollow.shards().size() == whole.shards().size());
  for (size_t s = 0; s < whole.shards().size(); ++s) {
    CHECK(hollow.shards()[s].name == whole.shards()[s].name);
    CHECK(hollow.shards()[s].header_hash == whole.shards()[s].header_hash);
    CHECK(hollow.shards()[s].file.size() == whole.shards()[s].file.size());
  }
  for (size_t i = 0; i < hollow.tensors().size(); ++i) {
    const TensorInfo& t = hollow.tensors()[i];
    CAPTURE(t.name);
    std::vector<uint8_t> bytes(t.bytes());
    hollow.read(i, 0, bytes);
    if (t.dtype == DType::kF32) {
      float value = 0;
      std::memcpy(&value, bytes.data(), sizeof(value));
      CHECK(value == 1.0f);
    } else {
      CHECK(std::all_of(bytes.begin(), bytes.end(), [](uint8_t b) { return b == 0; }));
    }
  }
}

}  // namespace synth_test
