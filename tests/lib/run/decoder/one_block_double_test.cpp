#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "lib/run/decoder/decoder.h"
#include "tests/support/models/decoder_golden.h"
#include "tests/support/scratch.h"

// The blocks of Nemotron-H in double, with the weights of golden models.

namespace twofour {
namespace {

/// A golden model, and one of its layers in double.
struct OneBlock {
  using Row = std::vector<double>;
  using Rows = std::vector<Row>;
  OneBlock(const std::string& name, int64_t n)
      : golden(read_decoder_golden(std::filesystem::path(TWOFOUR_GOLDEN_DIR) / "decoder", name)), layer(n) {
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < m * 32; ++i) hidden.push_back(normal(random));
  }
  int64_t size(const char* key) const { return golden.config[key].get<int64_t>(); }
  std::string full(const std::string& name) const {
    return "backbone.layers." + std::to_string(layer) + "." + name;
  }
  Row vector(const std::string& name) const {
    std::vector<int64_t> shape;
    for (const Json& n : golden.tensors[full(name)]) shape.push_back(n.get<int64_t>());
    const std::vector<float> w = golden_weights(full(name), shape);
    return {w.begin(), w.end()};
  }
  /// x w' + bias.
  Rows linear(const std::string& name, const Rows& x) const {
    const Row w = vector(name + ".weight");
    const auto k = x[0].size(), n = w.size() / k;
    const Row bias = golden.tensors.contains(full(name + ".bias")) ? vector(name + ".bias") : Row(n);
    Rows out(x.size(), bias);
    for (size_t i = 0; i < x.size(); ++i) {
      for (size_t j = 0; j < n; ++j)
        out[i][j] =
            std::inner_product(x[i].begin(), x[i].end(), w.begin() + static_cast<int64_t>(j * k), bias[j]);
    }
    return out;
  }
  static void normalize(Row& x, size_t begin, size_t count, const Row& weight, double epsilon) {
    double squares = 0;
    for (size_t j = begin; j < begin + count; ++j) squares += x[j] * x[j];
    const double by = 1 / std::sqrt(squares / static_cast<double>(count) + epsilon);
    for (size_t j = begin; j < begin + count; ++j) x[j] *= by * weight[j];
  }
  double epsilon() const { return golden.config["layer_norm_epsilon"].get<double>(); }
  Rows input() const {
    Rows x;
    for (int64_t i = 0; i < m; ++i) {
      x.emplace_back(hidden.begin() + i * 32, hidden.begin() + (i + 1) * 32);
      normalize(x.back(), 0, 32, vector("norm.weight"), epsilon());
    }
    return x;
  }
  /// The error of what the layer adds to its input.
  double error(const Rows& expected) const {
    const Scratch scratch;
    write_decoder_checkpoint(golden, scratch / "model");
    const Decoder decoder = Decoder::open(scratch / "model");
    std::vector<float> out = hidden;
    const SequencePart part{m, 0, nullptr};
    decoder.run_layer(layer, {&part, 1}, out);
    double worst = 0, largest = 0;
    for (size_t i = 0; i < out.size(); ++i) {
      const double added = static_cast<double>(out[i]) - static_cast<double>(hidden[i]);
      worst = std::max(worst, std::abs(added - expected[i / 32][i % 32]));
      largest = std::max(largest, std::abs(expected[i / 32][i % 32]));
    }
    return worst / largest;
  }
  DecoderGolden golden;
  int64_t layer, m = 70;
  std::vector<float> hidden;
};
double silu_of(double x) { return x / (1 + std::exp(-x)); }

/// Mamba-2 as the paper has it: token by token, a state [head_size, state_size] for each head.
OneBlock::Rows reference_state_space(const OneBlock& block) {
  const auto size = [&](const char* key) { return static_cast<size_t>(block.size(key)); };
  const size_t heads = size("mamba_num_heads"), p = size("mamba_head_dim"), groups = size("n_groups"),
               n = size("ssm_state_size"), kernel = size("conv_kernel"), values = heads * p,
               channels = values + 2 * groups * n;
  const OneBlock::Rows all = block.linear("mixer.in_proj", block.input());
  const OneBlock::Row taps = block.vector("mixer.conv1d.weight"), a_log = block.vector("mixer.A_log"),
                      skip = block.vector("mixer.D"), dt_bias = block.vector("mixer.dt_bias"),
                      weight = block.vector("mixer.norm.weight");
  const OneBlock::Row bias = block.golden.tensors.contains(block.full("mixer.conv1d.bias"))
                                 ? block.vector("mixer.conv1d.bias")
                                 : OneBlock::Row(channels);
  const double least = block.golden.config["time_step_min"].get<double>();
  std::vector<OneBlock::Rows> states(heads, OneBlock::Rows(p, OneBlock::Row(n)));
  OneBlock::Rows gated(all.size(), OneBlock::Row(values));
  for (size_t i = 0; i < all.size(); ++i) {
    OneBlock::Row mixed = bias;
    for (size_t c = 0; c < channels; ++c) {
      for (size_t back = 0; back < std::min(kernel, i + 1); ++back)
        mixed[c] += taps[c * kernel + kernel - 1 - back] * all[i - back][values + c];
      mixed[c] = silu_of(mixed[c]);
    }
    for (size_t h = 0; h < heads; ++h) {
      const double step = std::max(least, std::log1p(std::exp(all[i][values + channels + h] + dt_bias[h])));
      const double decay = std::exp(-std::exp(a_log[h]) * step);
      const size_t b = values + h / (heads / groups) * n, c = b + groups * n;
      for (size_t j = 0; j < p; ++j) {
        double read = skip[h] * mixed[h * p + j];
        for (size_t k = 0; k < n; ++k) {
          double& state = states[h][j][k];
          state = decay * state + step * mixed[h * p + j] * mixed[b + k];
          read += state * mixed[c + k];
        }
        gated[i][h * p + j] = read * silu_of(all[i][h * p + j]);
      }
    }
    for (size_t g = 0; g < groups; ++g)
      OneBlock::normalize(gated[i], g * values / groups, values / groups, weight, block.epsilon());
  }
  return block.linear("mixer.out_proj", gated);
}

TEST_CASE("a layer of Mamba-2 is that in double, with and without biases and clamped steps") {
  for (const auto& [name, layer] :
       {std::pair("nemotron_h", 0), {"nemotron_h", 4}, {"nemotron_h-steps", 1}, {"nemotron_h-steps", 2}}) {
    CAPTURE(name);
    CAPTURE(layer);
    const OneBlock block(name, layer);
    CHECK(block.error(reference_state_space(block)) <= 5e-6);
  }
}

OneBlock::Rows reference_plain_attention(const OneBlock& block) {
  const auto size = [&](const char* key) { return static_cast<size_t>(block.size(key)); };
  const size_t heads = size("num_attention_heads"), kv_heads = size("num_key_value_heads"),
               n = size("head_dim");
  const OneBlock::Rows x = block.input(), q = block.linear("mixer.q_proj", x),
                       k = block.linear("mixer.k_proj", x), v = block.linear("mixer.v_proj", x);
  OneBlock::Rows mixed(x.size(), OneBlock::Row(heads * n));
  for (size_t h = 0; h < heads; ++h) {
    const size_t kv = h / (heads / kv_heads) * n;
    for (size_t i = 0; i < x.size(); ++i) {
      double all = 0;
      for (size_t j = 0; j <= i; ++j) {
        double score = 0;
        for (size_t d = 0; d < n; ++d) score += q[i][h * n + d] * k[j][kv + d];
        const double by = std::exp(score / std::sqrt(static_cast<double>(n)));
        all += by;
        for (size_t d = 0; d < n; ++d) mixed[i][h * n + d] += by * v[j][kv + d];
      }
      for (size_t d = 0; d < n; ++d) mixed[i][h * n + d] /= all;
    }
  }
  return block.linear("mixer.o_proj", mixed);
}

TEST_CASE("attention without rope is that in double") {
  for (const auto& [name, layer] : {std::pair("nemotron_h", 2), {"nemotron_h-steps", 4}}) {
    const OneBlock block(name, layer);
    CHECK(block.error(reference_plain_attention(block)) <= 2e-6);
  }
}

OneBlock::Rows relu2(OneBlock::Rows x) {
  for (OneBlock::Row& row : x) {
    for (double& v : row) v = v > 0 ? v * v : 0;
  }
  return x;
}
OneBlock::Rows reference_mlp(const OneBlock& block, const std::string& path, const OneBlock::Rows& x) {
  return block.linear(path + ".down_proj", relu2(block.linear(path + ".up_proj", x)));
}

/// Experts of one token after another.
OneBlock::Rows reference_experts(const OneBlock& block) {
  const auto size = [&](const char* key) { return static_cast<size_t>(block.size(key)); };
  const size_t experts = size("n_routed_experts"), top = size("num_experts_per_tok"),
               groups = size("n_group"), each = experts / groups;
  const bool is_latent = !block.golden.config["moe_latent_size"].is_null();
  const OneBlock::Rows x = block.input(), logits = block.linear("mixer.gate", x);
  const OneBlock::Row correction = block.vector("mixer.gate.e_score_correction_bias");
  const OneBlock::Rows inputs = is_latent ? block.linear("mixer.fc1_latent_proj", x) : x;
  OneBlock::Rows sums(x.size(), OneBlock::Row(inputs[0].size()));
  std::vector<OneBlock::Rows> of_experts;
  for (size_t e = 0; e < experts; ++e)
    of_experts.push_back(reference_mlp(block, "mixer.experts." + std::to_string(e), inputs));
  for (size_t i = 0; i < x.size(); ++i) {
    OneBlock::Row scores, choice;
    for (size_t e = 0; e < experts; ++e) {
      scores.push_back(1 / (1 + std::exp(-logits[i][e])));
      choice.push_back(scores.back() + correction[e]);
    }
    std::vector<std::pair<double, size_t>> best;  // of each group: the sum of its two best
    for (size_t g = 0; g < groups; ++g) {
      OneBlock::Row own(choice.begin() + static_cast<int64_t>(g * each),
                        choice.begin() + static_cast<int64_t>((g + 1) * each));
      std::sort(own.rbegin(), own.rend());
      best.emplace_back(own[0] + own[1], g);
    }
    std::sort(best.rbegin(), best.rend());
    std::vector<std::pair<double, size_t>> open;
    for (size_t g = 0; g < size("topk_group"); ++g) {
      for (size_t e = best[g].second * each; e < (best[g].second + 1) * each; ++e)
        open.emplace_back(choice[e], e);
    }
    std::sort(open.rbegin(), open.rend());
    double all = 0;
    for (size_t t = 0; t < top; ++t) all += scores[open[t].second];
    if (!block.golden.config["norm_topk_prob"].get<bool>()) all = 1;
    for (size_t t = 0; t < top; ++t) {
      const size_t e = open[t].second;
      const double by = scores[e] / all * block.golden.config["routed_scaling_factor"].get<double>();
      for (size_t j = 0; j < sums[i].size(); ++j) sums[i][j] += by * of_experts[e][i][j];
    }
  }
  OneBlock::Rows out = reference_mlp(block, "mixer.shared_experts", x);
  const OneBlock::Rows wide = is_latent ? block.linear("mixer.fc2_latent_proj", sums) : sums;
  for (size_t i = 0; i < out.size(); ++i) {
    for (size_t j = 0; j < out[i].size(); ++j) out[i][j] += wide[i][j];
  }
  return out;
}

TEST_CASE("MLPs and experts without gates are those in double") {
  for (const auto& [name, layer] : {std::pair("nemotron_h", 3), {"nemotron_h-steps", 0}}) {
    const OneBlock block(name, layer);
    CHECK(block.error(reference_mlp(block, "mixer", block.input())) <= 2e-6);
  }
  for (const auto& [name, layer] : {std::pair("nemotron_h", 1), {"nemotron_h-steps", 3}}) {
    CAPTURE(name);
    const OneBlock block(name, layer);
    CHECK(block.error(reference_experts(block)) <= 2e-6);
  }
}

}  // namespace
}  // namespace twofour
