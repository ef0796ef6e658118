#include <algorithm>
#include <cmath>

#include "kernels/attention/compressed_attention.h"
#include "kernels/attention/residual_streams.h"
#include "kernels/device/check.h"
#include "lib/run/blocks/state.h"

namespace twofour {
namespace {

// The sources of DeepSeek-V4 round differently in places. There, the decoder rounds nothing: activations are
// float32, so queries, keys and entries are not in FP8 or FP4, the norms of queries and of entries and the
// scores of the index are float32, and inputs of wo_a are not quantized. In float32 the orders of these
// roundings agree, and the rules for the smallest scales and for ties of FP4 codes, which are rules of
// caches, do not apply.

/// Projections of the tokens of a batch.
struct CompressedInputs {
  std::vector<float> q;              ///< [tokens, heads, head_size]
  std::vector<float> kv;             ///< [tokens, head_size]
  std::vector<float> values, gates;  ///< values and gates of the compressor, [tokens, columns]
  std::vector<float> index_values, index_gates;
  std::vector<float> index_q, index_weights;  ///< [tokens, index_heads, index_size], [tokens, index_heads]
};

class CompressedBlock {
 public:
  CompressedBlock(const DecoderState& state, int64_t layer, int64_t tokens, const HalfRun& run)
      : s_(state),
        a_(state.shape.attention),
        c_(state.shape.compressed),
        w_(state.layers[at(layer)]),
        ratio_(c_.ratios[at(layer)]),
        m_(tokens),
        run_(run) {
    // In a layer with entries everything turns by their rope, tokens in the window, too.
    rotary_ = {ratio_ > 0 ? c_.frequencies : a_.frequencies, 1.0f, a_.interleaved};
    sinks_ = s_.weights.read(w_.attention.sinks);
    if (ratio_ > 0) bias_ = s_.weights.read(w_.compressed.entries.bias);
    if (has_index()) index_bias_ = s_.weights.read(w_.compressed.index.bias);
  }

  /// The projections of the normed input [tokens, H]. False if the run ends before they are complete.
  bool project(const std::vector<float>& x, CompressedInputs& in) const {
    const AttentionWeights& a = w_.attention;
    const CompressedWeights& c = w_.compressed;
    see(a.input_group, x, {});
    if (run_.last == LayerStage::kAttentionInput) return false;
    std::vector<float> low = product(a.q_a, x);
    normalize(low, a.q_a_norm);
    see(a.q_group, low, {});
    if (run_.last == LayerStage::kLatent) return false;
    in.q = product(a.q_b, low);
    // Each head's norm has no weight.
    cpu::rms_norm(in.q.data(), m_ * a_.heads, std::vector<float>(at(a_.head_size), 1.0f), s_.shape.epsilon,
                  in.q.data());
    in.kv = product(c.kv, x);
    normalize(in.kv, c.kv_norm);
    if (ratio_ > 0) {
      in.values = product(c.entries.values, x);
      in.gates = product(c.entries.gates, x);
    }
    if (has_index()) {
      in.index_values = product(c.index.values, x);
      in.index_gates = product(c.index.gates, x);
      in.index_q = product(c.index_q, low);
      in.index_weights = product(c.index_weights, x);
      const double scale = std::sqrt(static_cast<double>(c_.index_size * c_.index_heads));
      for (float& weight : in.index_weights) weight = static_cast<float>(static_cast<double>(weight) / scale);
    }
    return true;
  }

  /// The outputs of the heads for the tokens of one sequence, [count, heads, head_size].
  void attend(CompressedInputs& in, int64_t row, const SequencePart& part, LayerCache& cache,
              float* out) const {
    float *q = in.q.data() + row * a_.heads * a_.head_size, *kv = in.kv.data() + row * a_.head_size;
    rotate(q, part.count, a_.heads, a_.head_size, part.begin);
    rotate(kv, part.count, 1, a_.head_size, part.begin);
    const auto kept = static_cast<int64_t>(cache.keys.size()) / a_.head_size;
    check(kept == std::min(part.begin, c_.window - 1), "the window before");
    cache.keys.insert(cache.keys.end(), kv, kv + part.count * a_.head_size);
    std::vector<std::vector<int32_t>> chosen;
    // The compressor comes first: a token sees the entry that it completes.
    if (ratio_ > 0) chosen = extend_entries(in, row, part, cache);
    cpu::attend_chosen({.m = part.count,
                        .begin = part.begin,
                        .heads = a_.heads,
                        .size = a_.head_size,
                        .q = q,
                        .window = c_.window,
                        .first = part.begin - kept,
                        .tokens = cache.keys.data(),
                        .entries = cache.entries.data(),
                        .chosen = ratio_ > 0 ? &chosen : nullptr,
                        .sinks = sinks_,
                        .scale = static_cast<float>(a_.scale)},
                       out);
    const int64_t left = std::min(kept + part.count, c_.window - 1);
    cache.keys.erase(cache.keys.begin(), cache.keys.end() - left * a_.head_size);
    // The sum mixes values that turned by their own positions. Turned back by the query's, relative
    // positions are left.
    rotate(out, part.count, a_.heads, a_.head_size, part.begin, true);
  }

  /// The first projection of outputs, a product for each group of heads, [tokens, groups * rank]. Empty if
  /// the run ends before it.
  std::vector<float> project_groups(const std::vector<float>& mixed) const {
    // A head's group has consecutive heads, so the rows of `mixed` are those of all groups, one after
    // another.
    std::vector<int64_t> tokens(at(m_ * c_.groups));
    for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int64_t>(i) / c_.groups;
    see(w_.compressed.mixed_group, mixed, tokens);
    if (run_.last == LayerStage::kMixedHeads) return {};
    const ModelMatrix& w = w_.compressed.o_a;
    std::vector<float> out(at(m_ * c_.groups * c_.rank)), x(at(m_ * w.k)), y(at(m_ * c_.rank));
    for (int64_t group = 0; group < c_.groups; ++group) {
      for (int64_t i = 0; i < m_; ++i)
        std::copy_n(mixed.data() + (i * c_.groups + group) * w.k, w.k, x.data() + i * w.k);
      s_.weights.multiply_rows(w, group * c_.rank, (group + 1) * c_.rank, x.data(), m_, y.data());
      for (int64_t i = 0; i < m_; ++i)
        std::copy_n(y.data() + i * c_.rank, c_.rank, out.data() + (i * c_.groups + group) * c_.rank);
    }
    return out;
  }

 private:
  bool has_index() const { return CompressedShape::overlaps(ratio_); }
  std::vector<float> product(const ModelMatrix& w, const std::vector<float>& x) const {
    std::vector<float> out(at(m_ * w.n));
    s_.weights.multiply(w, x.data(), m_, out.data());
    return out;
  }
  void normalize(std::vector<float>& x, const ModelVector& norm) const {
    const std::vector<float> weight = s_.weights.read(norm);
    cpu::rms_norm(x.data(), static_cast<int64_t>(x.size() / weight.size()), weight, s_.shape.epsilon,
                  x.data());
  }
  void see(size_t group, const std::vector<float>& x, std::span<const int64_t> tokens) const {
    if (run_.watcher != nullptr) run_.watcher->see_input(group, x, tokens);
  }
  /// Rotates the last numbers of each head of rows [count, heads, size].
  void rotate(float* x, int64_t count, int64_t heads, int64_t size, int64_t begin, bool backward = false,
              int64_t step = 1) const {
    cpu::Rotary rotary = rotary_;
    rotary.backward = backward, rotary.step = step;
    const int64_t rotated = a_.head_size - a_.rotated_from;
    cpu::rotate(rotary, x, count, heads * size, heads, size, size - rotated, begin);
  }

  /// Adds tokens to a compressor, and the entries that they complete to `entries`. An entry turns by the
  /// position of its first token.
  std::vector<float> new_entries(const CompressorWeights& w, std::span<const float> bias, int64_t width,
                                 const float* values, const float* gates, const SequencePart& part,
                                 cpu::CompressorState& state) const {
    const cpu::Compressor compressor{ratio_, width, has_index(), bias};
    std::vector<float> made = cpu::compress(compressor, values, gates, part.count, part.begin, state);
    if (made.empty()) return made;
    normalize(made, w.norm);
    const int64_t first = part.begin / ratio_;
    rotate(made.data(), static_cast<int64_t>(made.size()) / width, 1, width, first * ratio_, false, ratio_);
    return made;
  }

  /// Makes the entries that the tokens complete. Returns those that each token sees.
  std::vector<std::vector<int32_t>> extend_entries(CompressedInputs& in, int64_t row,
                                                   const SequencePart& part, LayerCache& cache) const {
    const CompressedWeights& w = w_.compressed;
    const auto add = [&](const CompressorWeights& of, std::span<const float> bias, int64_t width,
                         const std::vector<float>& values, const std::vector<float>& gates,
                         cpu::CompressorState& state, std::vector<float>& entries, bool is_index) {
      const int64_t from = row * of.values.n;
      std::vector<float> made =
          new_entries(of, bias, width, values.data() + from, gates.data() + from, part, state);
      if (is_index) cpu::hadamard(made.data(), static_cast<int64_t>(made.size()) / width, width);
      entries.insert(entries.end(), made.begin(), made.end());
    };
    add(w.entries, bias_, a_.head_size, in.values, in.gates, cache.compressor, cache.entries, false);
    if (!has_index()) {
      // Without an index a token sees all entries so far.
      return cpu::choose_entries({.m = part.count, .begin = part.begin, .ratio = ratio_, .most = INT64_MAX});
    }
    // DeepSeek turns queries and keys of the index by a Hadamard matrix before they are rounded to FP4. It is
    // orthogonal, so the products stay the same: transformers and vLLM leave it out. It is in the model's own
    // code, so it is here.
    add(w.index, index_bias_, c_.index_size, in.index_values, in.index_gates, cache.index_compressor,
        cache.index_keys, true);
    float* q = in.index_q.data() + row * c_.index_heads * c_.index_size;
    rotate(q, part.count, c_.index_heads, c_.index_size, part.begin);
    cpu::hadamard(q, part.count * c_.index_heads, c_.index_size);
    return cpu::choose_entries({.m = part.count,
                                .begin = part.begin,
                                .heads = c_.index_heads,
                                .size = c_.index_size,
                                .ratio = ratio_,
                                .most = c_.chosen,
                                .q = q,
                                .keys = cache.index_keys.data(),
                                .weights = in.index_weights.data() + row * c_.index_heads});
  }

  const DecoderState& s_;
  const AttentionShape& a_;
  const CompressedShape& c_;
  const LayerWeights& w_;
  int64_t ratio_, m_;
  const HalfRun& run_;
  cpu::Rotary rotary_;
  std::vector<float> sinks_, bias_, index_bias_;
};

/// The streams' weights as floats, and the mixer that refers to them.
struct ReadMixer {
  ReadMixer(const DecoderState& s, const StreamWeights& w)
      : weight(s.weights.read(w.weight)), base(s.weights.read(w.base)), scale(s.weights.read(w.scale)) {
    mixer = {s.shape.streams.count,      s.shape.hidden,          weight,         base, scale,
             s.shape.streams.iterations, s.shape.streams.epsilon, s.shape.epsilon};
  }
  std::vector<float> weight, base, scale;
  cpu::StreamMixer mixer;
};

}  // namespace

void run_compressed(const DecoderState& s, int64_t layer, std::span<const SequencePart> batch, HalfRows rows,
                    const HalfRun& run) {
  const AttentionShape& a = s.shape.attention;
  const LayerWeights& w = s.layers[at(layer)];
  const auto m = static_cast<int64_t>(rows.in.size()) / s.shape.hidden;
  std::vector<float> x(rows.in.size());
  cpu::rms_norm(rows.in.data(), m, s.weights.read(w.attention.norm), s.shape.epsilon, x.data());
  const CompressedBlock block(s, layer, m, run);
  CompressedInputs in;
  if (!block.project(x, in)) return;
  std::vector<float> mixed(at(m * a.heads * a.head_size));
  int64_t row = 0;
  for (const SequencePart& part : batch) {
    LayerCache own;
    LayerCache& cache = part.cache != nullptr ? *part.cache : own;
    if (part.begin == 0) cache = {};
    block.attend(in, row, part, cache, mixed.data() + row * a.heads * a.head_size);
    row += part.count;
  }
  const std::vector<float> low = block.project_groups(mixed);
  if (run.last == LayerStage::kMixedHeads) return;
  if (run.watcher != nullptr) run.watcher->see_input(w.attention.output_group, low, {});
  if (run.last == LayerStage::kAttentionOutput) return;
  s.weights.multiply(w.attention.o, low.data(), m, x.data());
  for (size_t i = 0; i < x.size(); ++i) rows.out[i] += x[i];
}

void run_half_on_cpu(const DecoderState& s, int64_t layer, LayerHalf half,
                     std::span<const SequencePart> batch, std::span<float> hidden, const HalfRun& run) {
  const Mixer mixer = s.shape.mixers[at(layer)];
  const auto run_rows = half == LayerHalf::kFeedForward ? run_feed_forward
                        : mixer == Mixer::kDelta        ? run_delta
                        : mixer == Mixer::kCompressed   ? run_compressed
                        : mixer == Mixer::kStateSpace   ? run_state_space
                                                        : run_attention;
  const bool has_half =
      half == LayerHalf::kAttention ? s.shape.has_mixer(layer) : s.shape.has_feed_forward(layer);
  if (!has_half) return;
  if (!s.shape.streams.are_mixed()) return run_rows(s, layer, batch, {hidden, hidden}, run);
  const LayerWeights& w = s.layers[at(layer)];
  const int64_t n = s.shape.streams.count, h = s.shape.hidden;
  const auto m = static_cast<int64_t>(hidden.size()) / s.shape.residual();
  const ReadMixer own(s, half == LayerHalf::kAttention ? w.attention_streams : w.feed_forward_streams);
  const cpu::StreamMix mix = cpu::mix_streams(own.mixer, hidden.data(), m);
  std::vector<float> in(at(m * h)), out(in.size(), 0.0f);
  cpu::read_streams(mix.read, hidden.data(), n, h, in.data());
  run_rows(s, layer, batch, {in, out}, run);
  if (!run.last) cpu::write_streams(mix, out.data(), n, h, hidden.data());
}

std::vector<float> read_head_stream(const DecoderState& s, std::span<const float> hidden) {
  if (!s.shape.streams.are_mixed()) return {hidden.begin(), hidden.end()};
  const auto m = static_cast<int64_t>(hidden.size()) / s.shape.residual();
  const ReadMixer own(s, s.head_streams);
  std::vector<float> out(at(m * s.shape.hidden));
  const std::vector<float> read = cpu::mix_for_head(own.mixer, hidden.data(), m);
  cpu::read_streams(read, hidden.data(), s.shape.streams.count, s.shape.hidden, out.data());
  return out;
}

}  // namespace twofour
