#pragma once
#include <cstdint>
#include <span>
#include <string>

#include "lib/run/decoder/decoder.h"
#include "lib/source/model/weights.h"

namespace twofour {

/// The outputs of a linear, and the gradient of the loss in them.
struct OutputGradient {
  const std::string& linear;
  std::span<const float> dy;  ///< [rows, N]
};

/// Observes gradients during a backward pass, from one thread at a time.
class GradientWatcher {
 public:
  /// The group of a head that is a separate linear.
  static constexpr size_t kHead = SIZE_MAX;
  virtual ~GradientWatcher() = default;
  /// Receives the input `x` [rows, K] of one product and the gradients of its outputs. It is a product with
  /// one linear, or with gate and up of one expert. `group` is an index in Decoder::input_groups(). The rows
  /// are of `tokens`, which are indices in the batch, or of all tokens in order if it is empty.
  virtual void see_gradient(size_t group, std::span<const float> x, std::span<const int64_t> tokens,
                            std::span<const OutputGradient> outputs) = 0;
  /// True if see_norm_gradient() has a use for gradients.
  virtual bool wants_norms() const { return false; }
  /// Receives the sum over rows of the gradient in the weights of a norm, as they multiply: with
  /// ModelVector::plus.
  virtual void see_norm_gradient(const ModelVector&, std::span<const double>) {}
};

/// Throws Error if a block of the model has no backward pass, which are linear attention and attention to
/// compressed entries.
void check_gradients(const Decoder& model);

/// Computes the loss of a batch, the sum of -log p of each token of a sequence after its tokens before, and
/// its gradient in the residual stream after the last layer. `hidden` and `gradient` are [tokens, H]. The
/// parts have ids and begin at 0. The loss has no gradient in the last token of a sequence.
double backward_head(const Decoder& model, std::span<const SequencePart> batch, std::span<const float> hidden,
                     std::span<float> gradient, GradientWatcher* watcher);

/// The rows after the last layer of another model for the same tokens.
struct ReferenceRows {
  const Decoder& model;
  std::span<const float> hidden;  ///< [tokens, H of that model]
};
/// Does the same for another loss: the sum over all tokens of KL(reference || model) of the next token's
/// probabilities, in nats. Both models have one vocabulary and run on the CPU.
double backward_head(const Decoder& model, const ReferenceRows& reference, std::span<const float> hidden,
                     std::span<float> gradient, GradientWatcher* watcher);

/// Turns the gradient in the residual stream after a layer into the one before it. `hidden` [tokens, H] is
/// the stream before the layer, from which the activations within the layer are computed again. Runs on the
/// CPU in float32. The number of threads does not change results. `watcher` may be nullptr.
void backward_layer(const Decoder& model, int64_t layer, std::span<const SequencePart> batch,
                    std::span<const float> hidden, std::span<float> gradient, GradientWatcher* watcher);

/// Bytes of memory that a backward pass needs: for each token of a batch, beside `hidden` and `gradient`, and
/// for each call with sequences of `tokens` tokens.
uint64_t gradient_bytes_per_token(const Decoder& model);
uint64_t gradient_fixed_bytes(const Decoder& model, int64_t tokens);

}  // namespace twofour
