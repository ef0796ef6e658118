#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cmath>

#include "formats/error.h"
#include "kernels/numbers/casts.h"
#include "kernels/numbers/quantize.h"
#include "lib/base/io/file.h"
#include "tests/support/conversion.h"
#include "tests/support/one_rule.h"
#include "tests/support/scratch.h"
#include "tests/support/weights/float_weights.h"
#include "tests/support/weights/stored_weights.h"

namespace quantize_sources_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;

OneRule to_nvfp4(const std::string& dialect = "modelopt") {
  OneRule recipe;
  recipe.to = "quantize";
  recipe.dialect = dialect;
  return recipe;
}

void check_valid(const fs::path& source, const fs::path& artifact) {
  const ValidateReport report = validate_from(source, artifact);
  CHECK_MESSAGE(report.differences.empty(), text_of(report.differences));
  CHECK(report.source_tensors == read_tensors(source).size());
}

StoredTensor scales_between(DType dtype, std::vector<int64_t> shape, unsigned seed, uint8_t low,
                            uint8_t high) {
  StoredTensor s(dtype, std::move(shape), seed);
  for (uint8_t& byte : s.bytes) byte = static_cast<uint8_t>(low + byte % (high - low + 1));
  return s;
}

TensorData float_scales(const std::string& name, DType dtype, std::vector<int64_t> shape, unsigned seed) {
  int64_t count = 1;
  for (const int64_t d : shape) count *= d;
  std::vector<float> values;
  for (const float x : random_floats(count, 1, seed).values) {
    values.push_back(bf16_to_float(bf16_from_float(std::fabs(x) + 0x1p-10f)));
  }
  return {name, dtype, std::move(shape), float_bytes_as(dtype, values)};
}

/// gpt-oss: interleaved gate and up with biases; DeepSeek-V4: one matrix an expert.
Tensors mxfp4_model(uint8_t low, uint8_t high) {
  Tensors t;
  const std::string gpt = "model.layers.0.mlp.experts.", v4 = "layers.1.ffn.experts.0.";
  StoredTensor(DType::kU8, {2, 12, 2, 16}, 1).add_to(t, gpt + "gate_up_proj_blocks");
  scales_between(DType::kU8, {2, 12, 2}, 2, low, high).add_to(t, gpt + "gate_up_proj_scales");
  StoredTensor(DType::kBF16, {2, 12}, 3).add_to(t, gpt + "gate_up_proj_bias");
  StoredTensor(DType::kU8, {2, 64, 1, 16}, 4).add_to(t, gpt + "down_proj_blocks");
  scales_between(DType::kU8, {2, 64, 1}, 5, low, high).add_to(t, gpt + "down_proj_scales");
  StoredTensor(DType::kBF16, {2, 64}, 6).add_to(t, gpt + "down_proj_bias");
  unsigned seed = 10;
  for (const std::string w : {"w1", "w2", "w3"}) {
    StoredTensor(DType::kI8, {16, 48}, ++seed).add_to(t, v4 + w + ".weight");
    scales_between(DType::kF8E8M0, {16, 3}, ++seed, low, high).add_to(t, v4 + w + ".scale");
  }
  return t;
}

}  // namespace

TEST_CASE("FP8 of every kind is quantized as its values in F32 are") {
  Tensors coded, plain;
  const auto add = [&](const std::string& name, int64_t n, int64_t k, const std::string& suffix, DType dtype,
                       std::vector<int64_t> shape, unsigned seed) {
    fp8_weights({n, k}, seed).add_to(coded, name + ".weight");
    coded.push_back(float_scales(name + suffix, dtype, std::move(shape), seed + 1));
  };
  add("model.layers.0.mlp.gate_proj", 130, 272, ".weight_scale_inv", DType::kF32, {2, 3}, 1);
  add("model.layers.0.mlp.up_proj", 130, 272, ".weight_scale_inv", DType::kBF16, {2, 3}, 3);
  add("model.layers.0.self_attn.q_proj", 64, 48, ".weight_scale", DType::kF32, {}, 5);
  add("model.layers.0.self_attn.k_proj", 16, 48, ".weight_scale", DType::kBF16, {16, 1}, 7);
  add("model.layers.0.self_attn.v_proj", 16, 48, ".weight_scale", DType::kF32, {1}, 9);
  coded.push_back(float_scales("model.layers.0.self_attn.q_proj.input_scale", DType::kF32, {}, 11));
  const Scratch scratch;
  write_checkpoint(scratch / "coded", {coded});
  const Checkpoint c = Checkpoint::open(scratch / "coded");
  WeightReader reader(c);
  for (const Linear& m : find_weight_modules(c)) {
    FloatMatrix w{m.n, m.k, std::vector<float>(static_cast<size_t>(m.n * m.k))};
    reader.read_rows(m, 0, 0, m.n, w.values);
    add_floats(plain, m.name, w, DType::kF32);
  }
  write_checkpoint(scratch / "plain", {plain});
  for (const std::string dialect : {"modelopt", "compressed-tensors"}) {
    const fs::path from_coded = scratch / ("coded-" + dialect), from_plain = scratch / ("plain-" + dialect);
    const ConvertResult result = convert(scratch / "coded", from_coded, to_nvfp4(dialect));
    convert(scratch / "plain", from_plain, to_nvfp4(dialect));
    CHECK((read_tensors(from_coded) == read_tensors(from_plain)));
    CHECK(findings_of(result.findings, "rounded-twice").size() == 1);
    CHECK(findings_of(result.findings, "input-scales-dropped").size() == 1);
    check_valid(scratch / "coded", from_coded);
  }
}

TEST_CASE("MXFP4 is cast without loss where its scales lie within 2^17") {
  for (const auto& [low, high] : {std::pair{100, 117}, {0, 8}, {230, 247}}) {
    CAPTURE(low);
    const Scratch scratch;
    write_checkpoint(scratch / "src", {mxfp4_model(static_cast<uint8_t>(low), static_cast<uint8_t>(high))});
    for (const std::string dialect : {"modelopt", "compressed-tensors"}) {
      const fs::path to = scratch / dialect;
      const ConvertResult result = convert(scratch / "src", to, to_nvfp4(dialect));
      CHECK(findings_of(result.findings, "mxfp4-not-exact").empty());
      for (const EncodedResult& r : encoded(result)) {
        CHECK(r.cast);
        CHECK(r.error.error == 0);
      }
      check_valid(scratch / "src", to);
      // Rows of gpt-oss are taken apart, so both are compared as the same experts in order.
      const ReadTensors out = read_tensors(to);
      const Checkpoint c = Checkpoint::open(to), before = Checkpoint::open(scratch / "src");
      WeightReader reader(c), old(before);
      for (const Linear& m : find_weight_modules(before)) {
        for (int64_t e = 0; e < m.e; ++e) {
          std::vector<float> rows(static_cast<size_t>(m.n * m.k));
          old.read_rows(m, e, 0, m.n, rows);
          const bool fused = m.name.ends_with("gate_up_proj");
          std::vector<float> found;
          const std::string expert = fmt::format("model.layers.0.mlp.experts.{}.", e);
          std::vector<std::vector<float>> parts;
          for (const Linear& own : find_weight_modules(c)) {
            const bool is_ours = !m.stacked ? own.name == m.name
                                 : fused ? own.name == expert + "gate_proj" || own.name == expert + "up_proj"
                                         : own.name == expert + "down_proj";
            if (!is_ours) continue;
            parts.emplace_back(static_cast<size_t>(own.n * own.k));
            reader.read_rows(own, 0, 0, own.n, parts.back());
          }
          REQUIRE(parts.size() == (fused ? 2 : 1));
          for (size_t i = 0; i < rows.size(); ++i) {
            const size_t k = i % static_cast<size_t>(m.k), n = i / static_cast<size_t>(m.k);
            const float x = fused ? parts[n % 2][n / 2 * static_cast<size_t>(m.k) + k] : parts[0][i];
            REQUIRE(bits_of(x) == bits_of(rows[i]));
          }
        }
      }
    }
  }
}

TEST_CASE("MXFP4 whose scales are further apart is rounded where it is smallest, and says so") {
  const Scratch scratch;
  write_checkpoint(scratch / "src", {mxfp4_model(100, 119)});
  const ConvertResult result = convert(scratch / "src", scratch / "out", to_nvfp4());
  CHECK(findings_of(result.findings, "mxfp4-not-exact").size() > 0);
  uint64_t blocks = 0, rounded = 0;
  for (const EncodedResult& r : encoded(result)) {
    CHECK(r.cast);
    CHECK((r.tiles.inexact > 0) == (r.error.error > 0));
    blocks += r.tiles.count;
    rounded += r.tiles.inexact;
  }
  CHECK(rounded > 0);
  CHECK(rounded < blocks / 4);
  check_valid(scratch / "src", scratch / "out");
}

TEST_CASE("an MXFP4 scale becomes two of E4M3; blocks of zeros take no part in the range") {
  const std::vector<uint8_t> scales{127, 118, 135, 0, 254};
  std::vector<uint8_t> codes(5 * 16, 0x11);
  std::fill(codes.begin() + 48, codes.end(), 0x80);  // zeros of either sign
  Mxfp4Range range;
  CHECK(range.add(codes, scales) == -1);
  CHECK(range.is_exact());
  CHECK(range.exponent() == 0);
  std::vector<uint8_t> out(10);
  cast_mxfp4_scales(scales, range.exponent(), out.data());
  CHECK((out == std::vector<uint8_t>{0x38, 0x38, 0x01, 0x01, 0x78, 0x78, 0x01, 0x01, 0x78, 0x78}));
  codes.back() = 0x08;
  CHECK(range.add(codes, std::vector<uint8_t>{127, 255, 0, 0, 0}) == 1);
}

TEST_CASE("a checkpoint comes back from BF16 byte for byte with its own global scales") {
  for (const std::string dialect : {"modelopt", "compressed-tensors"}) {
    for (const std::string written : {"modelopt", "compressed-tensors"}) {
      CAPTURE(dialect);
      CAPTURE(written);
      const Scratch scratch;
      write_checkpoint(scratch / "parent", {dense_model()});
      convert(scratch / "parent", scratch / "nvfp4", to_nvfp4(dialect));
      OneRule bf16;
      bf16.to = "bf16";
      convert(scratch / "nvfp4", scratch / "bf16", bf16);
      const ReferenceCheckpoint kept(Checkpoint::open(scratch / "nvfp4"));
      OneRule recipe = to_nvfp4(written);
      recipe.arithmetic = dialect;
      recipe.kept = kept.scales();
      ConvertOptions options;
      options.kept = &kept;
      const ConvertResult result = convert(scratch / "bf16", scratch / "again", recipe, options);
      CHECK_MESSAGE(findings_of(result.findings, "not-returned").empty(), text_of(result.findings));
      for (const EncodedResult& r : encoded(result)) CHECK(r.kept.compared);
      if (written == dialect) CHECK((read_tensors(scratch / "again") == read_tensors(scratch / "nvfp4")));
      check_valid(scratch / "bf16", scratch / "again");
    }
  }
}

TEST_CASE("what cannot come back is counted, with its first place") {
  const Scratch scratch;
  Tensors tensors;
  // Block scales that no weight of their block reaches.
  const Nvfp4Matrix m = random_matrix(16, 64, 3);
  add_modelopt(tensors, "model.layers.0.mlp.down_proj", m);
  add_modelopt(tensors, "model.layers.0.mlp.gate_proj", random_matrix(16, 64, 4));
  write_checkpoint(scratch / "nvfp4", {tensors});
  OneRule bf16;
  bf16.to = "bf16";
  convert(scratch / "nvfp4", scratch / "bf16", bf16);
  const ReferenceCheckpoint kept(Checkpoint::open(scratch / "nvfp4"));
  OneRule recipe = to_nvfp4();
  recipe.kept = kept.scales();
  recipe.kept.scales.pop_back();
  ConvertOptions options;
  options.kept = &kept;
  const ConvertResult result = convert(scratch / "bf16", scratch / "out", recipe, options);
  const ReadTensors out = read_tensors(scratch / "out");
  uint64_t codes = 0, scales = 0;
  for (size_t i = 0; i < m.codes.size(); ++i)
    codes += out.at("model.layers.0.mlp.down_proj.weight").bytes[i] != m.codes[i];
  for (size_t i = 0; i < m.scales.size(); ++i) {
    scales += out.at("model.layers.0.mlp.down_proj.weight_scale").bytes[i] != m.scales[i];
  }
  CHECK(codes > 0);
  REQUIRE(encoded(result).size() == 2);
  CHECK(encoded(result)[0].kept.codes == codes);
  CHECK(encoded(result)[0].kept.scales == scales);
  CHECK(encoded(result)[0].kept.bytes == m.codes.size() + m.scales.size());
  const auto found = findings_of(result.findings, "not-returned");
  REQUIRE(found.size() == 2);
  CHECK(found[0].message.starts_with(
      fmt::format("{} bytes of codes and {} block scales differ from", codes, scales)));
  CHECK(findings_of(result.findings, "no-kept-scale").size() == 1);
  CHECK(findings_of(result.findings, "kept-global-scales").size() == 1);
  check_valid(scratch / "bf16", scratch / "out");
}

TEST_CASE("pruned weights are quantized with scales that fit the survivors") {
  const Scratch scratch;
  write_checkpoint(scratch / "src", {dense_model()});
  OneRule recipe = to_nvfp4();
  recipe.pattern = "2:4";
  const ConvertResult result = convert(scratch / "src", scratch / "out", recipe);
  const Checkpoint c = Checkpoint::open(scratch / "src");
  WeightReader reader(c);
  const ReadTensors out = read_tensors(scratch / "out");
  for (size_t i = 0; i < result.modules.size(); ++i) {
    const std::string& name = result.modules[i].name;
    CAPTURE(name);
    const auto& codes = out.at(name + ".weight").bytes;
    for (size_t j = 0; j < codes.size(); j += 2) {
      const int kept = ((codes[j] & 7) != 0) + ((codes[j] >> 4 & 7) != 0) + ((codes[j + 1] & 7) != 0) +
                       ((codes[j + 1] >> 4 & 7) != 0);
      REQUIRE(kept <= 2);
    }
    // About a tenth of the energy goes, and rounding takes little on top.
    CHECK(encoded(result)[i].error.relative_error() > 0.2);
    CHECK(encoded(result)[i].error.relative_error() < 0.4);
    CHECK(encoded(result)[i].error.energy == encoded(result)[i].pruned_after.energy);
    CHECK(encoded(result)[i].pruned_after.relative_error() > 0.2);
  }
  check_valid(scratch / "src", scratch / "out");
}

TEST_CASE("patterns choose, what stays is listed and keeps its format") {
  const Scratch scratch;
  Tensors tensors = dense_model();
  add_floats(tensors, "model.layers.0.mlp.gate", random_floats(4, 48, 1));
  add_floats(tensors, "model.layers.0.odd_proj", random_floats(4, 40, 2));
  write_checkpoint(scratch / "src", {tensors});
  OneRule recipe = to_nvfp4("compressed-tensors");
  recipe.selection.exclude = parse_patterns({"*.o_proj"});
  recipe.selection.also = parse_patterns({"lm_head"});
  const ConvertResult result = convert(scratch / "src", scratch / "out", recipe);
  CHECK(findings_of(result.findings, "odd-inputs").size() == 1);
  const Json config = parse_json("config", read_text(scratch / "out/config.json"))["quantization_config"];
  CHECK(config["ignore"] ==
        Json::array({"model.layers.0.mlp.gate", "model.layers.0.odd_proj", "model.layers.0.self_attn.o_proj",
                     "model.layers.1.self_attn.o_proj"}));
  CHECK(read_tensors(scratch / "out").count("lm_head.weight_packed") == 1);
  check_valid(scratch / "src", scratch / "out");
  recipe.selection.exclude = parse_patterns({"*.nothing"});
  CHECK_THROWS_WITH_AS(
      convert(scratch / "src", scratch / "none", recipe),
      "--exclude '*.nothing': expected to match a linear (model.layers.0.mlp.down_proj), found none", Error);
  fp8_weights({16, 48}, 1).add_to(tensors, "model.layers.3.mlp.down_proj.weight");
  tensors.push_back(float_scales("model.layers.3.mlp.down_proj.weight_scale", DType::kF32, {}, 1));
  write_checkpoint(scratch / "mixed", {tensors});
  recipe.selection.exclude = parse_patterns({"model.layers.3.*"});
  convert(scratch / "mixed", scratch / "both", recipe);
  check_valid(scratch / "mixed", scratch / "both");
  const Json both = parse_json("config", read_text(scratch / "both/config.json"))["quantization_config"];
  CHECK(both["format"] == "mixed-precision");
  CHECK(read_tensors(scratch / "both").at("model.layers.3.mlp.down_proj.weight") ==
        read_tensors(scratch / "mixed").at("model.layers.3.mlp.down_proj.weight"));
}

}  // namespace quantize_sources_test
