#include <cmath>
#include <limits>

#include "tests/support/faults/fault_words.h"

namespace twofour {

std::vector<Fault> weight_faults() {
  const auto set_scale = [](const char* rule, const char* suffix, float value, const char* what) {
    return Fault{rule, what,
                 [=](Save& s, Random&) { set_float(s.at(std::string(kLinear) + suffix), value); }};
  };
  const auto set_block = [](const char* what, uint8_t value) {
    return Fault{"bad-block-scale", what, [=](Save& s, Random& r) {
                   TensorData& t = s.at(expert(r, "gate_proj.weight_scale"));
                   t.bytes[r() % t.bytes.size()] = value;
                 }};
  };
  const float inf = std::numeric_limits<float>::infinity();
  return {
      {"unequal-global-scales", "gate and up",
       [](Save& s, Random& r) {
         TensorData& t = s.at(expert(r, "up_proj.weight_scale_2"));
         set_float(t, 2 * get_float(t));
       }},
      {"unequal-input-scales", "gate and up",
       [](Save& s, Random& r) {
         TensorData& t = s.at(expert(r, "up_proj.input_scale"));
         set_float(t, 2 * get_float(t));
       }},
      set_scale("bad-global-scale", ".weight_scale_2", NAN, "NaN"),
      set_scale("bad-global-scale", ".weight_scale_2", inf, "infinity"),
      set_scale("bad-global-scale", ".weight_scale_2", 0, "zero"),
      set_scale("bad-global-scale", ".weight_scale_2", -0.25f, "negative"),
      set_scale("bad-input-scale", ".input_scale", inf, "infinity"),
      set_scale("bad-input-scale", ".input_scale", 0, "zero"),
      {"bad-input-scale", "of the KV cache",
       [](Save& s, Random&) {
         s.add({"model.layers.0.self_attn.k_proj.k_scale", DType::kF32, {}, std::vector<uint8_t>(4)});
         promise_cache(s);
       }},
      set_scale("suspicious-scale", ".weight_scale_2", 5000, "a divisor"),
      set_scale("suspicious-scale", ".input_scale", 1e-30f, "uninitialized"),
      set_block("NaN", 0x7F),
      set_block("negative NaN", 0xFF),
      set_block("minus zero", 0x80),
      {"zero-scale", "a block",
       [](Save& s, Random& r) {
         const std::string module = expert(r, "down_proj");
         TensorData &scales = s.at(module + ".weight_scale"), &codes = s.at(module + ".weight");
         const size_t block = r() % scales.bytes.size();
         scales.bytes[block] = 0;
         codes.bytes[8 * block + r() % 8] |= 0x20;
       }},
      {"saturated-scales", "a third",
       [](Save& s, Random& r) {
         for (uint8_t& b : s.at(std::string(kLinear) + ".weight_scale").bytes) b = r() % 3 == 0 ? 0x7E : b;
       }},
      {"subnormal-scales", "all",
       [](Save& s, Random& r) {
         for (uint8_t& b : s.at(std::string(kLinear) + ".weight_scale").bytes)
           b = static_cast<uint8_t>(1 + r() % 7);
       }},
      {"amax-mismatch", "a quarter of 448",
       [](Save& s, Random& r) {
         for (uint8_t& b : s.at(expert(r, "down_proj.weight_scale")).bytes)
           b = static_cast<uint8_t>(0x40 + r() % 0x24);
       }},
      {"zero-weights", "a dead expert",
       [](Save& s, Random& r) {
         for (uint8_t& b : s.at(expert(r, "down_proj.weight")).bytes) b &= 0x88;  // -0, too
       }},
      {"zero-weights", "BF16",
       [](Save& s, Random&) {
         auto& bytes = s.at("model.layers.1.self_attn.q_proj.weight").bytes;
         bytes.assign(bytes.size(), 0);
       }},
      {"not-finite", "NaN",
       [](Save& s, Random& r) {
         auto& bytes = s.at("model.embed_tokens.weight").bytes;
         const size_t at = r() % (bytes.size() / 2) * 2;
         bytes[at] = 0x01;
         bytes[at + 1] = 0x7F;
         bytes[at] |= 0x80;
       }},
      {"constant-input-scale", "ones",
       [](Save& s, Random&) {
         for (auto& [file, tensors] : s.shards) {
           for (TensorData& t : tensors)
             if (t.name.ends_with(".input_scale")) set_float(t, 1);
         }
       }},
      {"tensor-type", "a norm in integers",
       [](Save& s, Random&) { s.at("model.layers.1.input_layernorm.weight").dtype = DType::kI16; }},
      {"tensor-type", "weights in F8_E5M2",
       [](Save& s, Random&) {
         TensorData& t = s.at("model.layers.1.self_attn.q_proj.weight");
         t.dtype = DType::kF8E5M2;
         t.bytes.resize(t.bytes.size() / 2);
       }},
      {"odd-numbers", "magnitudes without signs",
       [](Save& s, Random&) {
         auto& bytes = s.at("model.layers.1.self_attn.q_proj.weight").bytes;
         for (size_t i = 1; i < bytes.size(); i += 2) bytes[i] &= 0x7F;
       }},
      {"mxfp4-nan-scale", "0xFF",
       [](Save& s, Random& r) {
         std::vector<uint8_t> scales(16, 0x7F);
         scales[r() % 16] = 0xFF;
         s.add({"mtp.extra_blocks", DType::kU8, {2, 4, 2, 16}, std::vector<uint8_t>(256, 0x21)});
         s.add({"mtp.extra_scales", DType::kU8, {2, 4, 2}, scales});
       }},
  };
}

}  // namespace twofour
