#include <doctest/doctest.h>

#include <cstring>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "lib/base/io/file.h"
#include "lib/recipe/artifact/open_unpacked.h"
#include "lib/source/linears/matrices.h"
#include "tests/support/models/decoder_golden.h"
#include "tests/support/outcome.h"
#include "tests/support/scratch.h"

namespace cli_eval_formats_test {

using namespace twofour;

namespace {

using Words = std::vector<std::string>;

/// The same model with every matrix in F32, each weight what WeightReader says of it.
void write_widened(const std::filesystem::path& from, const std::filesystem::path& to) {
  const Checkpoint source = open_source(from);
  Findings findings;
  const Matrices matrices(source, findings);
  REQUIRE(findings.empty());
  Tensors tensors;
  std::set<size_t> of_modules;
  for (const Linear& m : matrices.modules()) {
    for (const size_t t : m.tensors()) of_modules.insert(t);
  }
  WeightReader reader(source);
  for (const auto& [name, place] : matrices.all()) {
    const int64_t k = matrices.module_of(place).k;
    std::vector<float> rows(static_cast<size_t>(place.count * k));
    matrices.read(reader, place, 0, place.count, rows);
    TensorData t{name + ".weight", DType::kF32, {place.count, k}, {}};
    t.bytes.resize(rows.size() * sizeof(float));
    std::memcpy(t.bytes.data(), rows.data(), t.bytes.size());
    tensors.push_back(std::move(t));
  }
  for (size_t i = 0; i < source.tensors().size(); ++i) {
    const TensorInfo& t = source.tensors()[i];
    if (of_modules.contains(i)) continue;
    TensorData copy{t.name, t.dtype, t.shape, std::vector<uint8_t>(t.bytes())};
    source.read(i, 0, copy.bytes);
    tensors.push_back(std::move(copy));
  }
  Json config = source.config();
  config.erase("quantization_config");
  write_checkpoint(to, {tensors}, config.dump());
}

}  // namespace

TEST_CASE("a model in any format says, to the bit, what it says with its weights in float32") {
  const Scratch scratch;
  const auto in = [&](const std::string& name) { return (scratch / name).string(); };
  const DecoderGolden golden =
      read_decoder_golden(std::filesystem::path(TWOFOUR_GOLDEN_DIR) / "decoder", "qwen3_moe");
  write_decoder_checkpoint(golden, scratch / "model");
  TensorData t{"tokens", DType::kI32, {2, static_cast<int64_t>(golden.tokens.size() / 2)}, {}};
  t.bytes.resize(golden.tokens.size() * sizeof(int32_t));
  std::memcpy(t.bytes.data(), golden.tokens.data(), t.bytes.size());
  write_safetensors(scratch / "tokens.safetensors", {t});

  const std::map<std::string, Words> formats = {
      {"modelopt", {"quantize", in("model"), in("modelopt")}},
      {"compressed-tensors",
       {"quantize", in("model"), in("compressed-tensors"), "--dialect", "compressed-tensors"}},
      {"pruned", {"quantize", in("model"), in("pruned"), "--pattern", "2:4"}},
      {"fp8-tensor", {"convert", in("model"), in("fp8-tensor"), "--to", "fp8", "--granularity", "tensor"}},
      {"fp8-row", {"convert", in("model"), in("fp8-row"), "--to", "fp8", "--granularity", "row"}},
      {"v7", {"convert", in("model"), in("v7"), "--to", "v7"}},
      {"v7-packed", {"convert", in("model"), in("v7-packed"), "--to", "v7-packed"}},
      {"g8", {"convert", in("model"), in("g8"), "--to", "g8"}},
  };
  for (const auto& [name, words] : formats) {
    CAPTURE(name);
    Words quiet = words;
    quiet.push_back("-q");
    const Outcome made = run_program(quiet);
    REQUIRE_MESSAGE(made.code == 0, made.err);
    write_widened(scratch / name, scratch / (name + "-widened"));
    const Words eval{"eval", in(name), "--tokens", in("tokens.safetensors"), "--json", "-q", "--against"};
    Words widened = eval, original = eval;
    widened.push_back(in(name + "-widened"));
    original.push_back(in("model"));
    const Json same = json_of(run_program(widened))["against"];
    CHECK(same["divergence"] == 0.0);
    for (const Json& layer : same["layers"]) CHECK(layer["relative_error"] == 0.0);
    CHECK(json_of(run_program(original))["against"]["divergence"].get<double>() > 1e-5);
  }
}

}  // namespace cli_eval_formats_test
