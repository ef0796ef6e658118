#include <algorithm>
#include <cmath>

#include "kernels/attention/delta_rule.h"
#include "lib/run/blocks/recurrent.h"

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
  DeltaBlock(const DecoderState& state, const DeltaShape& shape, const DeltaWeights& weights, int64_t tokens)
      : s_(state),
        d_(shape),
        w_(weights),
        m_(tokens),
        convolution_(state.weights.read(weights.convolution)),
        a_log_(state.weights.read(weights.a_log)),
        dt_bias_(state.weights.read(weights.dt_bias)) {}

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

  /// Computes what the tokens of one sequence read from its state, [count, value_heads, value_size]. `cache`
  /// has the state of the tokens before, and receives the one after them.
  void run(const DeltaInputs& in, int64_t row, int64_t count, LayerCache& cache, float* out) const {
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

  std::vector<float> gate(const std::vector<float>& read, const DeltaInputs& in) const {
    std::vector<float> out(read.size());
    cpu::gated_norm(read.data(), in.z.data(), m_ * d_.value_heads, s_.weights.read(w_.norm), s_.shape.epsilon,
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
  const std::vector<float> convolution_, a_log_, dt_bias_;  ///< read once for all sequences
};

}  // namespace

void run_delta(const DecoderState& s, int64_t layer, std::span<const SequencePart> batch, HalfRows rows,
               const HalfRun& run) {
  run_recurrent<DeltaBlock>(s, layer, s.shape.delta, s.layers[at(layer)].delta, batch, rows, run);
}

}  // namespace twofour
