#include <algorithm>
#include <cmath>

#include "kernels/device/check.h"
#include "lib/base/threads/parallel.h"
#include "lib/run/gradients/layer_blocks.h"

namespace twofour {

void MlpGradient::forward(const DecoderState& s, const MlpWeights& w, const float* x, int64_t m) {
  gate.resize(at(m * w.gate.n));
  up.resize(gate.size());
  s.weights.multiply(w.gate, x, m, gate.data());
  s.weights.multiply(w.up, x, m, up.data());
  units = gate;
  std::vector<float> clamped = up;
  parallel_for(at(m), [&](size_t i) {
    const size_t from = i * at(w.gate.n);
    apply_gate(s.shape.gate, units.data() + from, clamped.data() + from, w.gate.n);
  });
}

void MlpGradient::backward(const DecoderState& s, const MlpWeights& w, const float* dy, int64_t m,
                           std::span<const float> factors) {
  const int64_t width = w.gate.n, n = w.down.n;
  ddown.assign(dy, dy + m * n);
  std::vector<float> dunits = input_gradient(s, w.down, ddown);
  if (!factors.empty()) {
    const std::vector<float> bias = s.weights.read_bias(w.down);
    contributed.resize(at(m));
    for (int64_t i = 0; i < m; ++i) {
      // The product of down's output with its gradient, without computing the output
      double sum = 0;
      for (int64_t j = 0; j < width; ++j)
        sum += static_cast<double>(dunits[at(i * width + j)]) * static_cast<double>(units[at(i * width + j)]);
      for (int64_t j = 0; j < n && !bias.empty(); ++j)
        sum += static_cast<double>(ddown[at(i * n + j)]) * static_cast<double>(bias[at(j)]);
      contributed[at(i)] = static_cast<float>(sum);
      for (int64_t j = 0; j < width; ++j) dunits[at(i * width + j)] *= factors[at(i)];
      for (int64_t j = 0; j < n; ++j) ddown[at(i * n + j)] *= factors[at(i)];
    }
  }
  parallel_for(at(m), [&](size_t i) {
    const size_t from = i * at(width);
    gate_gradient(s.shape.gate, gate.data() + from, up.data() + from, width, dunits.data() + from,
                  up.data() + from);
  });
  gate = std::move(dunits);
}

void backward_feed_forward(const DecoderState& s, int64_t layer, std::span<const float> in,
                           std::span<float> gradient, GradientSight sight) {
  const FeedForwardWeights& f = s.layers[at(layer)].feed_forward;
  const int64_t h = s.shape.hidden, m = static_cast<int64_t>(in.size()) / h;
  const std::vector<float> x = norm_of(s, f.norm, in, s.shape.epsilon);
  std::vector<float> dy(gradient.begin(), gradient.end()), dx(in.size());
  MlpGradient mlp;
  if (f.mlp.gate) mlp.forward(s, f.mlp, x.data(), m);
  if (f.norm_behind) {
    check(f.experts.empty(), "a norm behind a dense MLP");
    dy = norm_gradient(s, f.norm_behind, multiply_rows_of(s, f.mlp.down, mlp.units), s.shape.epsilon, dy,
                       sight);
  }
  if (f.mlp.gate) {
    std::vector<float> shares;
    if (f.shared_gate) {
      shares = multiply_rows_of(s, f.shared_gate, x);
      for (float& v : shares) v = 1.0f / (1.0f + std::exp(-v));
    }
    mlp.backward(s, f.mlp, dy.data(), m, shares);
    sight.show(f.down_group, f.mlp.down, mlp.units, mlp.ddown);
    sight.show(f.input_group, f.mlp.gate, x, mlp.gate);
    sight.show(f.input_group, f.mlp.up, x, mlp.up);
    add_input_gradient(s.weights, f.mlp.gate, mlp.gate.data(), m, dx.data());
    add_input_gradient(s.weights, f.mlp.up, mlp.up.data(), m, dx.data());
    if (f.shared_gate) {
      for (size_t i = 0; i < shares.size(); ++i) mlp.contributed[i] *= shares[i] * (1.0f - shares[i]);
      sight.show(f.input_group, f.shared_gate, x, mlp.contributed);
      add_input_gradient(s.weights, f.shared_gate, mlp.contributed.data(), m, dx.data());
    }
  }
  if (!f.experts.empty()) backward_experts(s, f, x, dy, dx, sight);
  const std::vector<float> back = norm_gradient(s, f.norm, in, s.shape.epsilon, dx, sight);
  for (size_t i = 0; i < back.size(); ++i) gradient[i] += back[i];
}

}  // namespace twofour
