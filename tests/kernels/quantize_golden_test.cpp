#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "formats/e4m3.h"
#include "formats/half.h"
#include "formats/safetensors.h"
#include "kernels/numbers/quantize.h"

// What the producers themselves made of the same weights: tests/golden/quantize.

using namespace twofour;

namespace {

class GoldenFile {
 public:
  explicit GoldenFile(const std::string& name) {
    const auto path = std::filesystem::path(TWOFOUR_GOLDEN_DIR) / "quantize" / (name + ".safetensors");
    std::ifstream in(path, std::ios::binary);
    bytes_.assign(std::istreambuf_iterator<char>(in), {});
    REQUIRE(bytes_.size() > kSafetensorsPrefix);
    const uint64_t json = parse_safetensors_prefix(name, bytes_, bytes_.size());
    data_ = kSafetensorsPrefix + json;
    const auto* text = reinterpret_cast<const char*>(bytes_.data()) + kSafetensorsPrefix;
    for (const TensorInfo& t : parse_safetensors_header(name, {text, json}, bytes_.size() - data_).tensors) {
      tensors_[t.name] = t;
    }
  }

  /// "CASE.TYPE." of all cases.
  std::vector<std::string> cases() const {
    std::vector<std::string> found;
    for (const auto& [name, tensor] : tensors_) {
      if (name.ends_with(".weight")) found.push_back(name.substr(0, name.size() - 6));
    }
    return found;
  }

  bool contains(const std::string& name) const { return tensors_.contains(name); }

  std::vector<uint8_t> bytes(const std::string& name) const {
    const TensorInfo& t = tensors_.at(name);
    const auto* begin = bytes_.data() + data_ + t.begin;
    return {begin, begin + t.bytes()};
  }

  float scalar(const std::string& name) const {
    float value;
    std::memcpy(&value, bytes(name).data(), sizeof value);
    return value;
  }

  DType type(const std::string& name) const { return tensors_.at(name).dtype; }

  std::vector<float> weights(const std::string& name) const {
    const std::vector<uint8_t> raw = bytes(name);
    const size_t width = type(name) == DType::kF32 ? 4 : 2;
    std::vector<float> values(raw.size() / width);
    for (size_t i = 0; i < values.size(); ++i) {
      uint16_t half = 0;
      std::memcpy(width == 4 ? static_cast<void*>(&values[i]) : &half, &raw[i * width], width);
      if (type(name) == DType::kBF16) values[i] = bf16_to_float(half);
      if (type(name) == DType::kF16) values[i] = fp16_to_float(half);
    }
    return values;
  }

 private:
  std::vector<uint8_t> bytes_;
  std::map<std::string, TensorInfo> tensors_;
  uint64_t data_ = 0;
};

/// NaN of either sign is one byte: 0 / 0 has a sign that depends on the processor.
std::vector<uint8_t> without_nan_sign(std::vector<uint8_t> scales) {
  for (uint8_t& scale : scales) scale = e4m3_is_nan(scale) ? kE4m3Nan : scale;
  return scales;
}

/// "12 of 512 differ, the first at 3: 0x41, expected 0x42", or nothing.
std::string differences(const std::vector<uint8_t>& found, const std::vector<uint8_t>& expected) {
  if (found.size() != expected.size()) return "sizes differ";
  size_t count = 0, first = 0;
  for (size_t i = found.size(); i-- > 0;) {
    if (found[i] != expected[i]) ++count, first = i;
  }
  if (count == 0) return {};
  return std::to_string(count) + " of " + std::to_string(found.size()) + " differ, the first at " +
         std::to_string(first) + ": " + std::to_string(found[first]) + ", expected " +
         std::to_string(expected[first]);
}

/// Checks every byte of every case; returns how many cases there were.
int check_file(const std::string& name, QuantizeRule rule) {
  const GoldenFile golden(name);
  int count = 0;
  for (const std::string& key : golden.cases()) {
    CAPTURE(name);
    CAPTURE(key);
    const std::vector<float> weights = golden.weights(key + "weight");
    rule.weight_type = golden.type(key + "weight");
    const float stored = golden.scalar(key + "global_scale");
    GlobalScale global = global_scale_from(rule, stored);
    if (golden.contains(key + "global_amax")) {
      const float amax = largest_magnitude(weights);
      CHECK(std::bit_cast<uint32_t>(amax) == std::bit_cast<uint32_t>(golden.scalar(key + "global_amax")));
      global = global_scale_of(rule, amax);
      CHECK(std::bit_cast<uint32_t>(global.stored) == std::bit_cast<uint32_t>(stored));
    }
    std::vector<uint8_t> codes(weights.size() / 2), scales(weights.size() / 16);
    quantize_nvfp4(rule, global, weights, codes.data(), scales.data());
    CHECK(differences(without_nan_sign(scales), without_nan_sign(golden.bytes(key + "block_scale"))) == "");
    CHECK(differences(codes, golden.bytes(key + "codes")) == "");
    ++count;
  }
  return count;
}

}  // namespace

TEST_CASE("ModelOpt's own bytes: block scales from the maximum") {
  CHECK(check_file("modelopt_max", {}) == 42);
  CHECK(check_file("modelopt_max_given", {}) == 3);
}

TEST_CASE("llm-compressor's own bytes: block scales from the maximum") {
  const QuantizeRule rule{.arithmetic = Arithmetic::compressed_tensors};
  CHECK(check_file("compressed_tensors_max", rule) == 42);
  CHECK(check_file("compressed_tensors_max_given", rule) == 3);
}

TEST_CASE("ModelOpt's own bytes: four over six") {
  CHECK(check_file("modelopt_four_over_six", {.block_scale = BlockScale::four_over_six}) == 28);
}

TEST_CASE("ModelOpt's own bytes: block scales with the least squared error") {
  CHECK(check_file("modelopt_mse", {.block_scale = BlockScale::mse}) == 26);
}
