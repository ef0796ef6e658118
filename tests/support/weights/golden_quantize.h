#pragma once
#include <doctest/doctest.h>

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

namespace twofour {

/// Weights as a producer quantized them: a file of tests/golden/quantize.
class GoldenQuantize {
 public:
  explicit GoldenQuantize(const std::string& name) {
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
inline std::vector<uint8_t> without_nan_sign(std::vector<uint8_t> scales) {
  for (uint8_t& scale : scales) scale = e4m3_is_nan(scale) ? kE4m3Nan : scale;
  return scales;
}

/// "12 of 512 differ, the first at 3: 0x41, expected 0x42", or nothing.
inline std::string differences(const std::vector<uint8_t>& found, const std::vector<uint8_t>& expected) {
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

}  // namespace twofour
