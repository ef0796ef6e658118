#include <algorithm>
#include <cmath>

#include "kernels/attention/delta_rule.h"
#include "kernels/device/check.h"
#include "lib/run/blocks/state.h"

namespace twofour {
namespace {

/// Projections of the tokens of a batch.
struct DeltaInputs {
  std::vector<float> mixed;  ///< [tokens, channels] queries, keys and values of all heads
  std::vector<float> z;      ///< [tokens, values] gates of the outputs
  std::vector<float> b, a;   ///< [tokens, value_heads]
};

/// Appends `count` numbers at `from` to a row, and returns what follows them.
const float* take(const float* from, int64_t count, float*& to) {
  to = std::copy_n(from, count, to);
  return from + count;
}

class DeltaBlock {
 public:
  DeltaBlock(const DecoderState& state, int64_t layer, int64_t tokens)
      : s_(state), d_(state.shape.delta), w_(state.layers[at(layer)].delta), m_(tokens) {}

  DeltaInputs project(const std::vector<float>& x) const {
    if (!d_.by_key_head) return {product(w_.qkv, x), product(w_.z, x), product(w_.b, x), product(w_.a, x)};
    // The rows of the two projections are in blocks, one for each key head: its query and key, and the values
    // and gates of its value heads.
    const std::vector<float> qkvz = product(w_.qkvz, x), ba = product(w_.ba, x);
    const int64_t group = d_.value_heads / d_.key_heads;
    DeltaInputs in;
    in.mixed.resize(at(m_ * d_.channels())), in.z.resize(at(m_ * d_.values()));
    in.b.resize(at(m_ * d_.value_heads)), in.a.resize(in.b.size());
    float *z = in.z.data(), *b = in.b.data(), *a = in.a.data();
    for (int64_t i = 0; i < m_; ++i) {
      float *q = in.mixed.data() + i * d_.channels(), *k = q + d_.keys(), *v = k + d_.keys();
      const float *from = qkvz.data() + i * w_.qkvz.n, *gates = ba.data() + i * w_.ba.n;
      for (int64_t head = 0; head < d_.key_heads; ++head) {
        from = take(from, d_.key_size, q);
        from = take(from, d_.key_size, k);
        from = take(from, group * d_.value_size, v);
        from = take(from, group * d_.value_size, z);
        gates = take(gates, group, b);
        gates = take(gates, group, a);
      }
    }
    return in;
  }

  /// Reads the vectors of the layer, once for all sequences.
  void read_vectors() {
    convolution_ = s_.weights.read(w_.convolution);
    a_log_ = s_.weights.read(w_.a_log), dt_bias_ = s_.weights.read(w_.dt_bias);
  }

  /// Computes what the tokens of one sequence read from its state, [count, value_heads, value_size]. `cache`
  /// has the state of the tokens before, and receives the one behind them.
  void run(DeltaInputs& in, int64_t row, int64_t count, LayerCache& cache, float* out) const {
    const int64_t channels = d_.channels(), key_size = d_.key_size, gate = row * d_.value_heads;
    std::vector<float> mixed(at(count * channels)), decay(at(count * d_.value_heads)), beta(decay.size());
    cpu::convolve({.m = count,
                   .channels = channels,
                   .kernel = d_.kernel,
                   .x = in.mixed.data() + row * channels,
                   .weight = convolution_.data(),
                   .window = cache.window.data()},
                  mixed.data());
    float *q = mixed.data(), *k = q + d_.keys(), *v = k + d_.keys();
    const float scale = 1.0f / std::sqrt(static_cast<float>(key_size));
    cpu::normalize_lengths(q, count, channels, d_.key_heads, key_size, scale);
    cpu::normalize_lengths(k, count, channels, d_.key_heads, key_size, 1.0f);
    cpu::delta_gates({in.a.data() + gate, in.b.data() + gate, a_log_, dt_bias_, decay.data(), beta.data()},
                     count);
    cpu::delta_rule({.m = count,
                     .key_heads = d_.key_heads,
                     .value_heads = d_.value_heads,
                     .key_size = key_size,
                     .value_size = d_.value_size,
                     .q = q,
                     .k = k,
                     .v = v,
                     .stride = channels,
                     .decay = decay.data(),
                     .beta = beta.data(),
                     .state = cache.recurrent.data()},
                    out);
  }

  std::vector<float> gated_norm(const std::vector<float>& read, const std::vector<float>& z) const {
    std::vector<float> out(read.size());
    cpu::gated_norm(read.data(), z.data(), m_ * d_.value_heads, s_.weights.read(w_.norm), s_.shape.epsilon,
                    out.data());
    return out;
  }

 private:
  std::vector<float> product(const ModelMatrix& w, const std::vector<float>& x) const {
    std::vector<float> out(at(m_ * w.n));
    s_.weights.multiply(w, x.data(), m_, out.data());
    return out;
  }

  const DecoderState& s_;
  const DeltaShape& d_;
  const DeltaWeights& w_;
  int64_t m_;
  std::vector<float> convolution_, a_log_, dt_bias_;
};

/// The state of a sequence without tokens.
void clear(const DeltaShape& d, LayerCache& cache) {
  cache.window.assign(at(d.window()), 0.0f);
  cache.recurrent.assign(at(d.recurrent()), 0.0f);
}

}  // namespace

void run_delta(const DecoderState& s, int64_t layer, std::span<const SequencePart> batch, HalfRows rows,
               const HalfRun& run) {
  const DeltaShape& d = s.shape.delta;
  const LayerWeights& w = s.layers[at(layer)];
  const auto m = static_cast<int64_t>(rows.in.size()) / s.shape.hidden;
  std::vector<float> x(rows.in.size());
  cpu::rms_norm(rows.in.data(), m, s.weights.read(w.attention.norm), s.shape.epsilon, x.data());
  if (run.watcher != nullptr) run.watcher->see_input(w.delta.input_group, x, {});
  if (run.last == LayerStage::kAttentionInput || run.last == LayerStage::kLatent) return;

  DeltaBlock block(s, layer, m);
  DeltaInputs inputs = block.project(x);
  block.read_vectors();
  std::vector<float> read(at(m * d.values()));
  int64_t row = 0;
  for (const SequencePart& part : batch) {
    LayerCache own;
    LayerCache& cache = part.cache != nullptr ? *part.cache : own;
    check(part.begin == 0 || at(d.recurrent()) == cache.recurrent.size(), "the state of the tokens before");
    if (part.begin == 0) clear(d, cache);
    block.run(inputs, row, part.count, cache, read.data() + row * d.values());
    row += part.count;
  }
  const std::vector<float> gated = block.gated_norm(read, inputs.z);
  if (run.watcher != nullptr) run.watcher->see_input(w.delta.output_group, gated, {});
  if (run.last == LayerStage::kAttentionOutput) return;
  s.weights.multiply(w.delta.out, gated.data(), m, x.data());
  for (size_t i = 0; i < x.size(); ++i) rows.out[i] += x[i];
}

}  // namespace twofour
