#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>

#include "tests/lib/prove/validate/planted.h"
#include "tests/support/conversion.h"
#include "tests/support/message.h"
#include "tests/support/scratch.h"
#include "tests/support/weights/stored_weights.h"

namespace wrong_input_scale_test {

using namespace twofour;
using planted::differences_of;
using planted::Fault;

namespace {

namespace fs = std::filesystem;

const std::string kExperts = "model.layers.0.mlp.experts.";

std::string suffix_of(const std::string& dialect) {
  return dialect == "modelopt" ? ".input_scale" : ".input_global_scale";
}

/// Three experts, whose down projections all differ in their input scales; expert 2's up has none. In NVFP4
/// of a dialect, or in FP8.
void write_scaled_experts(const fs::path& path, const std::string& how) {
  Tensors t;
  float scale = 1.0f / 3;
  unsigned seed = 1;
  const auto add_scalar = [&](const std::string& name, float value) {
    std::vector<uint8_t> bytes(sizeof(value));
    std::memcpy(bytes.data(), &value, sizeof(value));
    t.push_back({name, DType::kF32, {}, bytes});
  };
  for (const char* e : {"0.", "1.", "2."}) {
    for (const char* leaf : {"gate_proj", "up_proj", "down_proj"}) {
      const std::string name = kExperts + e + leaf;
      if (how == "fp8") {
        fp8_weights({32, 32}, ++seed).add_to(t, name + ".weight");
        add_scalar(name + ".weight_scale", 0.5f);
      } else {
        const Nvfp4Matrix m = random_matrix(32, 32, ++seed);
        how == "modelopt" ? add_modelopt(t, name, m) : add_compressed_tensors(t, name, m);
      }
      scale *= 1.7f;
      if (name != kExperts + "2.up_proj")
        add_scalar(name + suffix_of(how == "fp8" ? "modelopt" : how), scale);
    }
  }
  const std::string entry =
      how == "compressed-tensors"
          ? R"({"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"})"
          : R"({"quant_method": "modelopt", "quant_algo": "NVFP4"})";
  write_checkpoint(path, {t}, R"({"model_type": "qwen3_moe", "quantization_config": )" + entry + "}");
}

FixedGlobalScales given_amax() {
  FixedGlobalScales given;
  float amax = 100;
  for (const char* e : {"0.", "1.", "2."}) {
    for (const char* leaf : {"gate_proj", "up_proj", "down_proj"})
      given.scales.push_back({kExperts + e + leaf, std::bit_cast<uint32_t>(amax *= 1.3f)});
  }
  given.sort();
  return given;
}

}  // namespace

TEST_CASE("a wrong input scale is found: another, none, one too many, the source's, that of other modules") {
  const Scratch scratch;
  for (const std::string from : {"modelopt", "compressed-tensors", "fp8"}) {
    fs::remove_all(scratch / "src");
    write_scaled_experts(scratch / "src", from);
    for (const std::string dialect : {"modelopt", "compressed-tensors"}) {
      for (const std::string words : {"neighbours", "constant=0.3", "given", "none"}) {
        CAPTURE(from);
        CAPTURE(dialect);
        CAPTURE(words);
        OneRule rule;
        rule.to = from == "fp8" ? "quantize" : "nvfp4";
        rule.dialect = dialect;
        rule.input_scale = words;
        if (words == "given") rule.input_scales = given_amax();
        const auto found_with = [&](Fault fault) {
          return text_of(differences_of(scratch / "src", scratch / "out", rule, fault));
        };
        const auto lines = [](const std::string& text) { return std::count(text.begin(), text.end(), '\n'); };
        CHECK(found_with(Fault::kNone) == "");
        const std::string all = found_with(Fault::kInputScaleOfAll);
        if (words == "none") {
          CHECK(contains(all, "2.up_proj: expected no input scale (the rule's settings), found "));
          CHECK(lines(all) == 9);
          continue;
        }
        if (words != "constant=0.3") CHECK(lines(all) >= 5);
        const std::string other = found_with(Fault::kInputScale);
        CHECK(lines(other) == 1);
        CHECK(contains(other, kExperts + "0."));
        if (words != "neighbours") CHECK(contains(other, suffix_of(dialect) + ": "));
        const std::string none = found_with(Fault::kNoInputScales);
        CHECK(contains(none, "2.up_proj: expected an input scale"));
        CHECK(lines(none) == 9);
        if (from == "fp8" || words == "neighbours") continue;
        const std::string own = found_with(Fault::kOwnInputScale);
        CHECK(contains(own, "(the rule's settings), found the source's"));
        CHECK(lines(own) == 1);
      }
    }
  }
}

TEST_CASE("an input scale that was changed in the output is found, and so is one of the wrong spelling") {
  const Scratch scratch;
  for (const std::string dialect : {"modelopt", "compressed-tensors"}) {
    fs::remove_all(scratch / "src");
    write_scaled_experts(scratch / "src", dialect);
    OneRule rule;
    rule.to = "nvfp4";
    rule.dialect = dialect;
    rule.input_scale = "constant=0.3";
    fs::remove_all(scratch / "out");
    convert(scratch / "src", scratch / "out", rule);
    const Checkpoint out = Checkpoint::open(scratch / "out");
    const std::string name = kExperts + "1.down_proj" + suffix_of(dialect);
    const TensorInfo& t = out.tensors()[*out.find(name)];
    float stored = 0;
    std::memcpy(&stored, read_tensors(scratch / "out").at(name).bytes.data(), sizeof(stored));
    CHECK(stored == (dialect == "modelopt" ? 0.3f : 1 / 0.3f));
    CHECK(t.shape.size() == (dialect == "modelopt" ? 0u : 1u));
    const fs::path file = scratch / "out" / out.shards()[0].name;
    const uint64_t header = fs::file_size(file) - [&] {
      uint64_t bytes = 0;
      for (const TensorInfo& one : out.tensors()) bytes += one.bytes();
      return bytes;
    }();
    flip_bit(file, header + t.begin, 0);
    const Findings found = validate_from(scratch / "src", scratch / "out", 0).differences;
    CHECK(contains(text_of(found), "bytes: " + name + ": 1 bytes differ"));
  }
}

}  // namespace wrong_input_scale_test
