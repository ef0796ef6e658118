#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "lib/run/blocks/state.h"
#include "lib/run/gradients/blocks.h"
#include "lib/run/gradients/gradients.h"

namespace twofour {

/// The gradients that a block shows while it runs backward.
class GradientSight {
 public:
  explicit GradientSight(GradientWatcher* watcher) : watcher_(watcher) {}
  /// Shows the product of all rows with one linear.
  void show(size_t group, const ModelMatrix& w, std::span<const float> x, std::span<const float> dy) const {
    const OutputGradient output{w.name, dy};
    if (watcher_ != nullptr) watcher_->see_gradient(group, x, {}, {&output, 1});
  }
  void show(size_t group, std::span<const float> x, std::span<const int64_t> tokens,
            std::initializer_list<OutputGradient> outputs) const {
    if (watcher_ != nullptr) watcher_->see_gradient(group, x, tokens, {outputs.begin(), outputs.size()});
  }
  /// Shows the gradient of a norm's weights, by that of its output.
  void show(const ModelVector& norm, std::span<const float> x, double epsilon,
            std::span<const float> dy) const {
    if (watcher_ == nullptr || !watcher_->wants_norms()) return;
    const auto m = static_cast<int64_t>(x.size()) / norm.count;
    watcher_->see_norm_gradient(norm, norm_weight_gradient(x.data(), m, norm.count, epsilon, dy.data()));
  }

 private:
  GradientWatcher* watcher_;
};

/// The attention of a layer for a batch, with the activations that its backward pass needs.
class AttentionGradient {
 public:
  AttentionGradient(const DecoderState& state, int64_t layer, std::span<const SequencePart> batch);
  ~AttentionGradient();
  /// Computes the stream after the attention from the one before it. Both are [tokens, H].
  std::vector<float> forward(std::span<const float> in);
  /// Turns the gradient in the stream after the attention into the one before it, after forward().
  void backward(std::span<const float> in, std::span<float> gradient, GradientSight sight);

 private:
  struct Activations;
  const DecoderState& s_;
  int64_t layer_;
  std::span<const SequencePart> batch_;
  std::unique_ptr<Activations> a_;
};

/// Turns the gradient in the stream after the MLP or the experts of a layer into the one before, where the
/// stream is `in`. Both are [tokens, H].
void backward_feed_forward(const DecoderState& state, int64_t layer, std::span<const float> in,
                           std::span<float> gradient, GradientSight sight);

/// Activations and gradients of gate, up and down for `m` rows.
struct MlpGradient {
  std::vector<float> units;     ///< [m, I] the input of down
  std::vector<float> gate, up;  ///< [m, I] the outputs of gate and up, and after backward their gradients
  std::vector<float>
      contributed;           ///< [m] the products of down's outputs with their gradients before `factors`
  std::vector<float> ddown;  ///< [m, N] gradients of down's outputs

  /// Computes the activations for rows `x` [m, H].
  void forward(const DecoderState& state, const MlpWeights& w, const float* x, int64_t m);
  /// Computes the gradients by that of the output [m, N]. The output is down's times `factors` [m], or down's
  /// if it is empty.
  void backward(const DecoderState& state, const MlpWeights& w, const float* dy, int64_t m,
                std::span<const float> factors);
};

/// Adds the gradients in the input `x` [tokens, H] of a layer's experts to `dx`.
void backward_experts(const DecoderState& state, const FeedForwardWeights& f, const std::vector<float>& x,
                      const std::vector<float>& dy, std::vector<float>& dx, GradientSight sight);

/// x w' + bias for rows `x` [m, K].
inline std::vector<float> multiply_rows_of(const DecoderState& s, const ModelMatrix& w,
                                           const std::vector<float>& x) {
  const auto m = static_cast<int64_t>(x.size()) / w.k;
  std::vector<float> out(at(m * w.n));
  s.weights.multiply(w, x.data(), m, out.data());
  return out;
}

/// dy w for rows `dy` [m, N].
inline std::vector<float> input_gradient(const DecoderState& s, const ModelMatrix& w,
                                         const std::vector<float>& dy) {
  const auto m = static_cast<int64_t>(dy.size()) / w.n;
  std::vector<float> dx(at(m * w.k));
  add_input_gradient(s.weights, w, dy.data(), m, dx.data());
  return dx;
}

/// The norm of the rows of `x`, and the gradient of its input. The gradient of its weights is shown.
inline std::vector<float> norm_of(const DecoderState& s, const ModelVector& norm, std::span<const float> x,
                                  double epsilon) {
  const std::vector<float> weight = s.weights.read(norm);
  std::vector<float> out(x.size());
  cpu::rms_norm(x.data(), static_cast<int64_t>(x.size() / weight.size()), weight, epsilon, out.data());
  return out;
}
inline std::vector<float> norm_gradient(const DecoderState& s, const ModelVector& norm,
                                        std::span<const float> x, double epsilon, std::span<const float> dy,
                                        const GradientSight& sight) {
  sight.show(norm, x, epsilon, dy);
  const std::vector<float> weight = s.weights.read(norm);
  std::vector<float> dx(x.size());
  add_norm_gradient(x.data(), static_cast<int64_t>(x.size() / weight.size()), weight, epsilon, dy.data(),
                    dx.data());
  return dx;
}

}  // namespace twofour
