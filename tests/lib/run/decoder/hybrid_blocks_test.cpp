#include <doctest/doctest.h>
#include <xtensor/xadapt.hpp>
#include <xtensor/xbuilder.hpp>
#include <xtensor/xmanipulation.hpp>
#include <xtensor/xmath.hpp>
#include <xtensor/xview.hpp>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "lib/run/decoder/decoder.h"
#include "tests/support/models/decoder_golden.h"
#include "tests/support/scratch.h"

// The blocks of hybrids in double, with the weights of golden models.

namespace twofour {
namespace {

using Vector = xt::xtensor<double, 1>;
using Rows = xt::xtensor<double, 2>;
using Heads = xt::xtensor<double, 3>;

auto as_column(const Vector& x) { return xt::view(x, xt::all(), xt::newaxis()); }
Rows sigmoid(const Rows& x) { return 1.0 / (1.0 + xt::exp(-x)); }
Rows silu(const Rows& x) { return x * sigmoid(x); }
/// x w' for x [m, k] and w [n, k].
Rows product(const Rows& x, const Rows& w) {
  return xt::sum(
      xt::view(x, xt::all(), xt::newaxis(), xt::all()) * xt::view(w, xt::newaxis(), xt::all(), xt::all()),
      {2});
}
Rows rms_norm(const Rows& x, const Vector& weight, double epsilon) {
  return x / xt::sqrt(as_column(xt::mean(x * x, {1})) + epsilon) * weight;
}
Rows columns(const Rows& x, int64_t begin, int64_t count) {
  return xt::view(x, xt::all(), xt::range(begin, begin + count));
}

/// A golden model, the input of one of its layers, and the config's sizes.
struct Block {
  Block(const std::string& name, int64_t n)
      : golden(read_decoder_golden(std::filesystem::path(TWOFOUR_GOLDEN_DIR) / "decoder", name)), layer(n) {
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    hidden.resize(static_cast<size_t>(m * size("hidden_size")));
    for (float& h : hidden) h = normal(random);
  }
  double epsilon() const { return text_config(golden)["rms_norm_eps"].get<double>(); }
  int64_t size(const char* key) const { return text_config(golden)[key].get<int64_t>(); }
  std::string full(const std::string& name) const {
    const char* prefix =
        golden.config.contains("text_config") ? "model.language_model.layers." : "model.layers.";
    return prefix + std::to_string(layer) + "." + name;
  }
  bool has(const std::string& name) const { return golden.tensors.contains(full(name)); }
  Vector vector(const std::string& name) const {
    std::vector<int64_t> shape;
    for (const Json& n : golden.tensors[full(name)]) shape.push_back(n.get<int64_t>());
    const std::vector<float> w = golden_weights(full(name), shape, true);
    return xt::adapt(w, {w.size()});
  }
  Rows matrix(const std::string& name) const {
    const Vector w = vector(name + ".weight");
    const auto n = golden.tensors[full(name + ".weight")][0].get<size_t>();
    Rows rows = xt::zeros<double>({n, w.size() / n});
    std::copy(w.begin(), w.end(), rows.begin());
    return rows;
  }
  Rows bias(const std::string& name) const {
    if (!has(name + ".bias")) return xt::zeros<double>({int64_t{1}, int64_t{1}});
    return xt::view(vector(name + ".bias"), xt::newaxis(), xt::all());
  }
  Rows linear(const std::string& name, const Rows& x) const { return product(x, matrix(name)) + bias(name); }
  Rows input() const {
    const Rows x = xt::adapt(hidden, {m, size("hidden_size")});
    return rms_norm(x, 1.0 + vector("input_layernorm.weight"), epsilon());
  }
  /// The numbers that the layer's first half adds to its input.
  Rows added() const {
    const Scratch scratch;
    write_decoder_checkpoint(golden, scratch / "model");
    const Decoder decoder = Decoder::open(scratch / "model");
    std::vector<float> out = hidden;
    const SequencePart part{m, 0, nullptr};
    decoder.run_half(layer, LayerHalf::kAttention, {&part, 1}, out, {});
    const std::vector<int64_t> shape{m, size("hidden_size")};
    return Rows(xt::adapt(out, shape)) - Rows(xt::adapt(hidden, shape));
  }
  double error(const Rows& expected) const {
    return xt::amax(xt::abs(added() - expected))() / xt::amax(xt::abs(expected))();
  }
  DecoderGolden golden;
  int64_t layer, m = 70;
  std::vector<float> hidden;
};

/// Queries, keys, values, z [m, heads * size], and b and a [m, value_heads].
struct Projected {
  Rows q, k, v, z, b, a;
};
Rows beside(const std::vector<Rows>& parts) {
  Rows all = parts[0];
  for (size_t i = 1; i < parts.size(); ++i) all = Rows(xt::concatenate(xt::xtuple(all, parts[i]), 1));
  return all;
}
Projected project(const Block& block, const Rows& x) {
  const int64_t keys = block.size("linear_num_key_heads"), values = block.size("linear_num_value_heads"),
                key = block.size("linear_key_head_dim"), value = block.size("linear_value_head_dim");
  if (!block.has("linear_attn.in_proj_qkvz.weight")) {
    const Rows qkv = block.linear("linear_attn.in_proj_qkv", x);
    return {columns(qkv, 0, keys * key),
            columns(qkv, keys * key, keys * key),
            columns(qkv, 2 * keys * key, values * value),
            block.linear("linear_attn.in_proj_z", x),
            block.linear("linear_attn.in_proj_b", x),
            block.linear("linear_attn.in_proj_a", x)};
  }
  const Rows qkvz = block.linear("linear_attn.in_proj_qkvz", x),
             ba = block.linear("linear_attn.in_proj_ba", x);
  const int64_t group = values / keys, width = 2 * key + 2 * group * value;
  std::vector<Rows> q, k, v, z, b, a;
  for (int64_t h = 0; h < keys; ++h) {
    const Rows own = columns(qkvz, h * width, width), gates = columns(ba, h * 2 * group, 2 * group);
    q.push_back(columns(own, 0, key));
    k.push_back(columns(own, key, key));
    v.push_back(columns(own, 2 * key, group * value));
    z.push_back(columns(own, 2 * key + group * value, group * value));
    b.push_back(columns(gates, 0, group));
    a.push_back(columns(gates, group, group));
  }
  return {beside(q), beside(k), beside(v), beside(z), beside(b), beside(a)};
}

Rows reference_delta(const Block& block) {
  const int64_t keys = block.size("linear_num_key_heads"), values = block.size("linear_num_value_heads"),
                key = block.size("linear_key_head_dim"), value = block.size("linear_value_head_dim"),
                kernel = block.size("linear_conv_kernel_dim"), m = block.m;
  const Projected p = project(block, block.input());
  const Rows before = beside({p.q, p.k, p.v}), taps = block.matrix("linear_attn.conv1d");
  Rows mixed = xt::zeros_like(before);
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t t = 0; t < std::min(kernel, i + 1); ++t)  // t tokens before
      xt::view(mixed, i) += xt::view(taps, xt::all(), kernel - 1 - t) * xt::view(before, i - t);
  }
  mixed = silu(mixed);
  const Vector rate = xt::exp(block.vector("linear_attn.A_log"));
  const Rows decay = xt::exp(-rate * xt::log1p(xt::exp(p.a + block.vector("linear_attn.dt_bias")))),
             beta = sigmoid(p.b);
  Rows read = xt::zeros<double>({m, values * value});
  for (int64_t h = 0; h < values; ++h) {
    Rows state = xt::zeros<double>({key, value});
    const int64_t at = h / (values / keys) * key;
    const auto unit = [](const Vector& x) { return Vector(x / std::sqrt(xt::sum(x * x)() + 1e-6)); };
    for (int64_t i = 0; i < m; ++i) {
      const Vector row = xt::view(mixed, i), q = unit(xt::view(row, xt::range(at, at + key))),
                   k = unit(xt::view(row, xt::range(keys * key + at, keys * key + at + key)));
      const int64_t own = 2 * keys * key + h * value;
      const Vector v = xt::view(row, xt::range(own, own + value));
      state *= decay(i, h);
      const Vector written = beta(i, h) * (v - xt::sum(as_column(k) * state, {0}));
      state += as_column(k) * xt::view(written, xt::newaxis(), xt::all());
      xt::view(read, i, xt::range(h * value, (h + 1) * value)) =
          xt::sum(as_column(q) * state, {0}) / std::sqrt(static_cast<double>(key));
    }
    const Rows normed = rms_norm(columns(read, h * value, value), block.vector("linear_attn.norm.weight"),
                                 block.epsilon());  // plain weights
    xt::view(read, xt::all(), xt::range(h * value, (h + 1) * value)) =
        normed * silu(columns(p.z, h * value, value));
  }
  return block.linear("linear_attn.out_proj", read);
}

TEST_CASE("a layer of linear attention is that in double, whatever the order of its projections") {
  for (const auto& [name, layer] :
       {std::pair("qwen3_next", 0), {"qwen3_next", 3}, {"qwen3_5", 1}, {"qwen3_5-vision", 2}}) {
    CAPTURE(name);
    const Block block(name, layer);
    CHECK(block.error(reference_delta(block)) <= 5e-6);
  }
}

/// Rotates the first `rotated` numbers of each row, a head of the token with the row's number.
Rows rotate(const Rows& x, int64_t rotated, double theta) {
  Rows out = x;
  for (int64_t i = 0; i < static_cast<int64_t>(x.shape(0)); ++i) {
    for (int64_t j = 0; j < rotated / 2; ++j) {
      const double angle = static_cast<double>(i) *
                           std::pow(theta, -2 * static_cast<double>(j) / static_cast<double>(rotated));
      const double a = x(i, j), b = x(i, j + rotated / 2);
      out(i, j) = a * std::cos(angle) - b * std::sin(angle);
      out(i, j + rotated / 2) = b * std::cos(angle) + a * std::sin(angle);
    }
  }
  return out;
}

Rows reference_attention(const Block& block, int64_t rotated, double theta) {
  const int64_t heads = block.size("num_attention_heads"), kv_heads = block.size("num_key_value_heads"),
                size = block.size("head_dim"), m = block.m;
  const Rows x = block.input(), queries = block.linear("self_attn.q_proj", x),
             keys = block.linear("self_attn.k_proj", x), values = block.linear("self_attn.v_proj", x);
  const Vector q_norm = 1.0 + block.vector("self_attn.q_norm.weight"),
               k_norm = 1.0 + block.vector("self_attn.k_norm.weight");
  Rows mixed = xt::zeros<double>({m, heads * size});
  for (int64_t h = 0; h < heads; ++h) {
    const int64_t kv = h / (heads / kv_heads);
    const Rows q = rotate(rms_norm(columns(queries, 2 * h * size, size), q_norm, block.epsilon()), rotated,
                          theta),
               k = rotate(rms_norm(columns(keys, kv * size, size), k_norm, block.epsilon()), rotated, theta),
               v = columns(values, kv * size, size), gate = columns(queries, (2 * h + 1) * size, size);
    for (int64_t i = 0; i < m; ++i) {
      const Rows seen = xt::view(k, xt::range(0, i + 1));
      const Vector weights =
          xt::exp(xt::sum(seen * xt::view(q, i), {1}) / std::sqrt(static_cast<double>(size)));
      const Vector read =
          xt::sum(as_column(weights) * xt::view(v, xt::range(0, i + 1)), {0}) / xt::sum(weights)();
      xt::view(mixed, i, xt::range(h * size, (h + 1) * size)) = read * xt::view(sigmoid(gate), i);
    }
  }
  return block.linear("self_attn.o_proj", mixed);
}

TEST_CASE("gated attention is that in double: zero-centred norms, a part of each head rotated") {
  const Block next("qwen3_next", 1), dense("qwen3_5", 3), vision("qwen3_5-vision", 1);
  CHECK(next.error(reference_attention(next, 4, 1e4)) <= 2e-6);
  CHECK(dense.error(reference_attention(dense, 8, 1e5)) <= 2e-6);
  CHECK(vision.error(reference_attention(vision, 8, 1e5)) <= 2e-6);
}

}  // namespace
}  // namespace twofour
