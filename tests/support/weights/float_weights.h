#pragma once
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "formats/half.h"
#include "lib/source/linears/linears.h"
#include "tests/support/checkpoint_builder.h"

namespace twofour {

/// A matrix [n, k] of numbers that BF16 has.
struct FloatMatrix {
  int64_t n, k;
  std::vector<float> values;
};

/// Normal weights with an outlier, a block of zeros, -0 and tiny ones.
inline FloatMatrix random_floats(int64_t n, int64_t k, unsigned seed, float spread = 0.02f) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, spread);
  FloatMatrix m{n, k, std::vector<float>(static_cast<size_t>(n * k))};
  for (float& x : m.values) x = bf16_to_float(bf16_from_float(normal(random)));
  const auto pick = [&] { return random() % m.values.size(); };
  m.values[pick()] = bf16_to_float(bf16_from_float(9.7f * spread));
  m.values[pick()] = -0.0f;
  m.values[pick()] = -0x1p-40f;
  const size_t block = pick() / 16 * 16;
  for (size_t i = block; i < std::min(block + 16, m.values.size()); ++i) m.values[i] = 0;
  return m;
}

inline std::vector<uint8_t> float_bytes_as(DType dtype, const std::vector<float>& values) {
  std::vector<uint8_t> bytes;
  for (const float x : values) {
    const uint16_t half = dtype == DType::kF16 ? fp16_from_float(x) : bf16_from_float(x);
    const auto* from =
        dtype == DType::kF32 ? reinterpret_cast<const uint8_t*>(&x) : reinterpret_cast<const uint8_t*>(&half);
    bytes.insert(bytes.end(), from, from + (dtype == DType::kF32 ? 4 : 2));
  }
  return bytes;
}

inline void add_floats(Tensors& to, const std::string& module, const FloatMatrix& m,
                       DType dtype = DType::kBF16) {
  to.push_back({module + ".weight", dtype, {m.n, m.k}, float_bytes_as(dtype, m.values)});
}

/// A stack [E, N, K] or, with `k_outer`, [E, K, N].
inline void add_float_stack(Tensors& to, const std::string& name, const std::vector<FloatMatrix>& experts,
                            bool k_outer) {
  const int64_t n = experts[0].n, k = experts[0].k, e = static_cast<int64_t>(experts.size());
  std::vector<float> values;
  for (const FloatMatrix& m : experts) {
    for (int64_t i = 0; i < n * k; ++i) {
      values.push_back(m.values[static_cast<size_t>(k_outer ? i % n * k + i / n : i)]);
    }
  }
  to.push_back({name, DType::kBF16, k_outer ? std::vector{e, k, n} : std::vector{e, n, k},
                float_bytes_as(DType::kBF16, values)});
}

/// Rows of `a`, then of `b`, or of both in turn.
inline FloatMatrix join_rows(const FloatMatrix& a, const FloatMatrix& b, bool interleaved) {
  FloatMatrix out{a.n + b.n, a.k, {}};
  for (int64_t r = 0; r < out.n; ++r) {
    const bool from_b = interleaved ? r % 2 == 1 : r >= a.n;
    const auto row = (from_b ? b : a).values.begin() + (interleaved ? r / 2 : r % a.n) * a.k;
    out.values.insert(out.values.end(), row, row + a.k);
  }
  return out;
}

/// A small dense model: attention, MLP, norms, embedding and head, in BF16.
inline Tensors dense_model(DType dtype = DType::kBF16) {
  Tensors t;
  const auto add = [&](const std::string& name, int64_t n, int64_t k, unsigned seed) {
    add_floats(t, name, random_floats(n, k, seed, 0.01f * static_cast<float>(seed % 5 + 1)), dtype);
  };
  for (const std::string layer : {"model.layers.0.", "model.layers.1."}) {
    const auto seed = static_cast<unsigned>(layer[13]) * 20;
    add(layer + "self_attn.q_proj", 64, 48, seed);
    add(layer + "self_attn.k_proj", 16, 48, seed + 1);
    add(layer + "self_attn.v_proj", 16, 48, seed + 2);
    add(layer + "self_attn.o_proj", 48, 64, seed + 3);
    add(layer + "mlp.gate_proj", 80, 48, seed + 4);
    add(layer + "mlp.up_proj", 80, 48, seed + 5);
    add(layer + "mlp.down_proj", 48, 80, seed + 6);
    add_bf16(t, layer + "input_layernorm.weight", {48}, seed);
  }
  add(std::string("model.embed_tokens"), 40, 48, 7);
  add(std::string("lm_head"), 40, 48, 8);
  return t;
}

}  // namespace twofour
