#pragma once
#include <fmt/format.h>

#include <cstring>

#include "tests/support/faults/faults.h"

// The vocabulary of faults of names, configs and bytes.

namespace twofour {

using Random = std::mt19937;

inline constexpr const char* kLayer0 = "model.layers.0.";
inline constexpr const char* kLinear = "model.layers.0.self_attn.o_proj";  // NVFP4 and no expert

inline void set_float(TensorData& t, float value) { std::memcpy(t.bytes.data(), &value, sizeof(value)); }
inline float get_float(const TensorData& t) {
  float value = 0;
  std::memcpy(&value, t.bytes.data(), sizeof(value));
  return value;
}

/// A matrix of a random expert of layer 0.
inline std::string expert(Random& random, const char* matrix) {
  return fmt::format("{}mlp.experts.{}.{}", kLayer0, random() % 8, matrix);
}

/// FP8 for the KV cache, in both files.
inline void promise_cache(Save& s) {
  s.edit("config.json", [](Json& j) {
    j["quantization_config"]["kv_cache_scheme"] = {{"dynamic", false}, {"num_bits", 8}, {"type", "float"}};
  });
  s.edit("hf_quant_config.json", [](Json& j) { j["quantization"]["kv_cache_quant_algo"] = "FP8"; });
}

/// Faults of numbers: scales, codes, floats.
std::vector<Fault> weight_faults();

}  // namespace twofour
