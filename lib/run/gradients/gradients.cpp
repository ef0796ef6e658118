#include "lib/run/gradients/gradients.h"

#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "formats/error.h"
#include "kernels/device/check.h"
#include "kernels/device/isa.h"
#include "kernels/floats/float_ops.h"
#include "lib/base/threads/interrupt.h"
#include "lib/base/threads/parallel.h"
#include "lib/run/gradients/layer_blocks.h"

namespace twofour {
namespace {

/// Bytes of the logits that are in memory at the same time.
constexpr int64_t kLogitBytes = 64 << 20;

int64_t logit_rows(const ModelShape& m) {
  return std::clamp<int64_t>(kLogitBytes / int64_t{sizeof(float)} / m.vocabulary, 1, 1024);
}

/// The token that follows each token of a batch; -1 after a sequence.
std::vector<int32_t> next_tokens(std::span<const SequencePart> batch) {
  std::vector<int32_t> next;
  for (const SequencePart& part : batch) {
    check(part.ids != nullptr && part.begin == 0, "the ids of whole sequences");
    next.insert(next.end(), part.ids + 1, part.ids + part.count);
    next.push_back(-1);
  }
  return next;
}

/// Turns logits into the gradient of -log p of a token, and returns that loss.
double logit_gradient(std::span<float> logits, int32_t token) {
  if (token < 0) {
    std::fill(logits.begin(), logits.end(), 0.0f);
    return 0;
  }
  const double sum = float_ops(best_isa()).log_sum_exp(logits.data(), static_cast<int64_t>(logits.size()));
  const double loss = sum - static_cast<double>(logits[static_cast<size_t>(token)]);
  for (float& v : logits) v = static_cast<float>(std::exp(static_cast<double>(v) - sum));
  logits[static_cast<size_t>(token)] -= 1.0f;
  return loss;
}

/// Turns logits into the gradient of KL(expected || model), and returns that divergence.
double divergence_gradient(std::span<const float> expected, std::span<float> logits) {
  const auto log_sum = [](std::span<const float> row) {
    return float_ops(best_isa()).log_sum_exp(row.data(), static_cast<int64_t>(row.size()));
  };
  const double own_sum = log_sum(logits), expected_sum = log_sum(expected);
  double divergence = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    const double own = static_cast<double>(logits[i]) - own_sum,
                 other = static_cast<double>(expected[i]) - expected_sum;
    const double probability = std::exp(other);
    divergence += probability * (other - own);
    logits[i] = static_cast<float>(std::exp(own) - probability);
  }
  return divergence;
}

}  // namespace

void check_gradients(const Decoder& model) {
  const auto refuse = [&](const char* block) {
    throw Error(
        fmt::format("{}: model_type: expected a family whose blocks all have a backward pass, found {}, "
                    "whose {} has none",
                    (model.checkpoint().path() / "config.json").string(), model.shape().family, block));
  };
  if (model.shape().one_block) refuse("layer of one block");
  for (const Mixer mixer : model.shape().mixers) {
    if (mixer == Mixer::kDelta) refuse("linear attention");
    if (mixer == Mixer::kCompressed) refuse("attention to compressed entries");
  }
  check(!model.shape().streams.are_mixed(), "one residual stream");
}

namespace {

/// Goes through the rows of a batch: computes their logits, of which `loss_of` makes the gradients, and the
/// gradient of `hidden`. loss_of(row, logits) returns the loss of a row, and begin(row, count) is called
/// before some rows.
double backward_rows(const Decoder& model, std::span<const float> hidden, std::span<float> gradient,
                     GradientWatcher* watcher, const std::function<void(int64_t, int64_t)>& begin_rows,
                     const std::function<double(size_t, std::span<float>)>& loss_of) {
  check_interrupt();
  const DecoderState& s = model.state();
  const int64_t h = s.shape.hidden, vocabulary = s.shape.vocabulary, most = logit_rows(s.shape);
  const auto m = static_cast<int64_t>(hidden.size()) / h;
  check(gradient.size() == hidden.size(), "the tokens of the batch");
  const GradientSight sight(s.shape.is_tied ? nullptr : watcher), of_norm(watcher);
  std::fill(gradient.begin(), gradient.end(), 0.0f);
  const std::vector<float> weight = s.weights.read(s.norm);
  double loss = 0;
  for (int64_t begin = 0; begin < m; begin += most) {
    const int64_t count = std::min(most, m - begin);
    const auto rows = hidden.subspan(at(begin * h), at(count * h));
    const std::vector<float> x = norm_of(s, s.norm, rows, s.shape.epsilon);
    std::vector<float> logits = multiply_rows_of(s, s.head, x);
    begin_rows(begin, count);
    std::vector<double> losses(at(count));
    parallel_for(at(count), [&](size_t i) {
      losses[i] = loss_of(at(begin) + i, std::span(logits).subspan(i * at(vocabulary), at(vocabulary)));
    });
    for (const double one : losses) loss += one;
    sight.show(GradientWatcher::kHead, s.head, x, logits);
    const std::vector<float> dx = input_gradient(s, s.head, logits);
    of_norm.show(s.norm, rows, s.shape.epsilon, dx);
    add_norm_gradient(rows.data(), count, weight, s.shape.epsilon, dx.data(), gradient.data() + begin * h);
  }
  return loss;
}

}  // namespace

double backward_head(const Decoder& model, std::span<const SequencePart> batch, std::span<const float> hidden,
                     std::span<float> gradient, GradientWatcher* watcher) {
  const std::vector<int32_t> next = next_tokens(batch);
  check(hidden.size() == next.size() * at(model.shape().hidden), "the tokens of the batch");
  return backward_rows(
      model, hidden, gradient, watcher, [](int64_t, int64_t) {},
      [&](size_t row, std::span<float> logits) { return logit_gradient(logits, next[row]); });
}

double backward_head(const Decoder& model, const ReferenceRows& reference, std::span<const float> hidden,
                     std::span<float> gradient, GradientWatcher* watcher) {
  const int64_t width = reference.model.shape().residual(), vocabulary = model.shape().vocabulary;
  check(reference.model.shape().vocabulary == vocabulary, "models of one vocabulary");
  std::vector<float> expected;
  int64_t first = 0;
  return backward_rows(
      model, hidden, gradient, watcher,
      [&](int64_t begin, int64_t count) {
        first = begin;
        expected.resize(at(count * vocabulary));
        reference.model.run_head(reference.hidden.subspan(at(begin * width), at(count * width)), expected);
      },
      [&](size_t row, std::span<float> logits) {
        return divergence_gradient(
            std::span(expected).subspan((row - at(first)) * at(vocabulary), at(vocabulary)), logits);
      });
}

void backward_layer(const Decoder& model, int64_t layer, std::span<const SequencePart> batch,
                    std::span<const float> hidden, std::span<float> gradient, GradientWatcher* watcher) {
  check_interrupt();
  const DecoderState& s = model.state();
  check(s.shape.mixers[at(layer)] == Mixer::kAttention, "a layer with a backward pass");
  check(gradient.size() == hidden.size(), "the tokens of the batch");
  const GradientSight sight(watcher);
  AttentionGradient attention(s, layer, batch);
  const std::vector<float> between = attention.forward(hidden);
  backward_feed_forward(s, layer, between, gradient, sight);
  attention.backward(hidden, gradient, sight);
}

uint64_t gradient_bytes_per_token(const Decoder& model) {
  const ModelShape& m = model.shape();
  const AttentionShape& a = m.attention;
  const int64_t q = a.heads * a.head_size, kv = a.kv_heads * (a.head_size + a.value_size),
                read = a.heads * a.value_size;
  // Activations of the attention, which stay while the other half runs backward
  int64_t kept = m.hidden + 2 * (q + kv) + 2 * read + (a.has_gate ? q : 0) + (a.clip > 0 ? q + kv : 0);
  if (m.has_norms_behind) kept += m.hidden;
  if (a.kv_rank > 0) kept += 2 * a.q_rank + 3 * a.kv_rank + a.head_size;
  const int64_t latent = a.kv_rank > 0 ? 2 * a.heads * (a.head_size + a.value_size) + 2 * a.q_rank : 0;
  const int64_t attention = 2 * m.hidden + 2 * (q + kv) + 2 * read + (a.has_gate ? 3 * q : 0) + latent;
  const int64_t mlp = 5 * std::max(m.width, m.shared_width) + m.hidden;
  const int64_t experts =
      m.experts > 0 ? 3 * m.experts + m.top_k * (5 * m.expert_width + 4 * m.hidden + 5) : 0;
  return sizeof(float) * static_cast<uint64_t>(3 * m.hidden + kept + std::max(attention, mlp + experts));
}

uint64_t gradient_fixed_bytes(const Decoder& model, int64_t tokens) {
  const ModelShape& m = model.shape();
  const auto scores = attention_gradient_bytes(tokens, m.attention.head_size, m.attention.value_size) *
                      static_cast<uint64_t>(omp_get_max_threads());
  const uint64_t head =
      sizeof(float) * static_cast<uint64_t>(logit_rows(m) * (2 * m.vocabulary + 4 * m.hidden));
  return ModelWeights::kChunkBytes + (uint64_t{64} << 20) + std::max(scores, head);
}

}  // namespace twofour
