#include <algorithm>
#include <cmath>
#include <optional>

#include "lib/run/blocks/state.h"

namespace twofour {
namespace {

/// Queries, keys and values of the tokens of a batch.
struct Heads {
  std::vector<float> q;  ///< [tokens, heads, head_size]
  std::vector<float> k;  ///< [tokens, kv_heads, head_size]
  std::vector<float> v;  ///< [tokens, kv_heads, value_size]
  /// [tokens, heads, head_size] logits of gates of the outputs; empty if there are none
  std::vector<float> gates = {};
};

/// Moves the gate after each head's query to `gates`.
void split_gates(Heads& h, int64_t head_size) {
  const std::vector<float> both = std::move(h.q);
  h.q.resize(both.size() / 2), h.gates.resize(h.q.size());
  const float* from = both.data();
  for (size_t i = 0; i < h.q.size(); i += at(head_size), from += 2 * head_size) {
    std::copy_n(from, head_size, h.q.data() + i);
    std::copy_n(from + head_size, head_size, h.gates.data() + i);
  }
}

void clip(std::vector<float>& x, double limit) {
  const auto most = static_cast<float>(limit);
  for (float& v : x) v = std::clamp(v, -most, most);
}

class AttentionBlock {
 public:
  AttentionBlock(const DecoderState& state, int64_t layer, int64_t tokens, const HalfRun& run)
      : s_(state),
        a_(state.shape.attention),
        w_(state.layers[at(layer)].attention),
        windowed_(state.shape.windows[at(layer)] > 0),
        m_(tokens),
        run_(run) {}

  /// The heads of the input [tokens, H], before rotation. Nothing if the run ends before they are complete.
  std::optional<Heads> project(const std::vector<float>& x) const {
    see(w_.input_group, x);
    if (run_.last == LayerStage::kAttentionInput) return std::nullopt;
    if (a_.kv_rank > 0) return project_latent(x);
    return run_.last == LayerStage::kLatent ? std::nullopt : std::optional(project_plain(x));
  }

  void rotate(Heads& heads, std::span<const SequencePart> batch) const {
    const bool is_own = windowed_ && !a_.window_frequencies.empty();
    const cpu::Rotary rotary{is_own ? a_.window_frequencies : a_.frequencies, a_.amplitude, a_.interleaved};
    int64_t row = 0;
    for (const SequencePart& part : batch) {
      const int64_t q = a_.heads * a_.head_size, k = a_.kv_heads * a_.head_size;
      cpu::rotate(rotary, heads.q.data() + row * q, part.count, q, a_.heads, a_.head_size, a_.rotated_from,
                  part.begin);
      cpu::rotate(rotary, heads.k.data() + row * k, part.count, k, a_.kv_heads, a_.head_size, a_.rotated_from,
                  part.begin);
      row += part.count;
    }
  }

 private:
  std::vector<float> product(const ModelMatrix& w, const std::vector<float>& x) const {
    std::vector<float> out(at(m_ * w.n));
    s_.weights.multiply(w, x.data(), m_, out.data());
    return out;
  }
  void normalize(std::vector<float>& x, const ModelVector& norm, double epsilon) const {
    const std::vector<float> weight = s_.weights.read(norm);
    cpu::rms_norm(x.data(), static_cast<int64_t>(x.size() / weight.size()), weight, epsilon, x.data());
  }

  void see(size_t group, const std::vector<float>& x) const {
    if (run_.watcher != nullptr) run_.watcher->see_input(group, x, {});
  }

  Heads project_plain(const std::vector<float>& x) const {
    Heads h{product(w_.q, x), product(w_.k, x), product(w_.v, x)};
    if (a_.has_gate) split_gates(h, a_.head_size);
    if (a_.norm != HeadNorm::kNone) {
      normalize(h.q, w_.q_norm, s_.shape.epsilon);
      normalize(h.k, w_.k_norm, s_.shape.epsilon);
    }
    if (a_.clip > 0) {
      for (std::vector<float>* some : {&h.q, &h.k, &h.v}) clip(*some, a_.clip);
    }
    return h;
  }

  std::optional<Heads> project_latent(const std::vector<float>& x) const {
    Heads h;
    const bool ends = run_.last == LayerStage::kLatent;
    if (a_.q_rank > 0) {
      std::vector<float> low = product(w_.q_a, x);
      normalize(low, w_.q_a_norm, kLatentEpsilon);
      see(w_.q_group, low);
      if (!ends) h.q = product(w_.q_b, low);
    } else if (!ends) {
      h.q = product(w_.q, x);
    }
    const int64_t rotated = a_.head_size - a_.rotated_from, from = a_.rotated_from;
    const std::vector<float> low = product(w_.kv_a, x);
    std::vector<float> latent(at(m_ * a_.kv_rank));
    for (int64_t i = 0; i < m_; ++i)
      std::copy_n(low.data() + i * (a_.kv_rank + rotated), a_.kv_rank, latent.data() + i * a_.kv_rank);
    normalize(latent, w_.kv_a_norm, kLatentEpsilon);
    see(w_.latent_group, latent);
    if (ends) return std::nullopt;
    const std::vector<float> both = product(w_.kv_b, latent);
    h.k.resize(at(m_ * a_.heads * a_.head_size));
    h.v.resize(at(m_ * a_.heads * a_.value_size));
    for (int64_t i = 0; i < m_ * a_.heads; ++i) {
      const float* head = both.data() + i * (from + a_.value_size);
      std::copy_n(head, from, h.k.data() + i * a_.head_size);
      std::copy_n(low.data() + i / a_.heads * (a_.kv_rank + rotated) + a_.kv_rank, rotated,
                  h.k.data() + i * a_.head_size + from);
      std::copy_n(head + from, a_.value_size, h.v.data() + i * a_.value_size);
    }
    return h;
  }

  const DecoderState& s_;
  const AttentionShape& a_;
  const AttentionWeights& w_;
  bool windowed_;
  int64_t m_;
  const HalfRun& run_;
};

/// Appends keys or values of `count` tokens to a cache, and returns the whole cache.
const float* append(std::vector<float>& cache, const float* rows, int64_t begin, int64_t count,
                    int64_t width) {
  cache.resize(at(begin * width));
  cache.insert(cache.end(), rows, rows + count * width);
  return cache.data();
}

/// The inputs of o for a batch. Nothing if the run ends before they are complete.
std::optional<std::vector<float>> mix_heads(const DecoderState& s, int64_t layer,
                                            std::span<const SequencePart> batch, HalfRows rows,
                                            const HalfRun& run) {
  const AttentionShape& a = s.shape.attention;
  const AttentionWeights& w = s.layers[at(layer)].attention;
  const auto m = static_cast<int64_t>(rows.in.size()) / s.shape.hidden;
  std::vector<float> x(rows.in.size());
  cpu::rms_norm(rows.in.data(), m, s.weights.read(w.norm), s.shape.epsilon, x.data());
  const AttentionBlock block(s, layer, m, run);
  std::optional<Heads> projected = block.project(x);
  if (!projected) return std::nullopt;
  Heads& heads = *projected;
  block.rotate(heads, batch);

  std::vector<float> sinks;
  if (w.sinks) sinks = s.weights.read(w.sinks);
  std::vector<float> mixed(at(m * a.heads * a.value_size));
  int64_t row = 0;
  for (const SequencePart& part : batch) {
    const int64_t key_width = a.kv_heads * a.head_size, value_width = a.kv_heads * a.value_size;
    const float *k = heads.k.data() + row * key_width, *v = heads.v.data() + row * value_width;
    if (part.cache != nullptr) {
      k = append(part.cache->keys, k, part.begin, part.count, key_width);
      v = append(part.cache->values, v, part.begin, part.count, value_width);
    }
    cpu::attend({.queries = part.count,
                 .keys = part.begin + part.count,
                 .heads = a.heads,
                 .kv_heads = a.kv_heads,
                 .head_size = a.head_size,
                 .value_size = a.value_size,
                 .q = heads.q.data() + row * a.heads * a.head_size,
                 .k = k,
                 .v = v,
                 .sinks = sinks,
                 .scale = static_cast<float>(a.scale),
                 .window = s.shape.windows[at(layer)]},
                mixed.data() + row * a.heads * a.value_size);
    row += part.count;
  }
  for (size_t i = 0; i < heads.gates.size(); ++i) mixed[i] *= 1.0f / (1.0f + std::exp(-heads.gates[i]));
  if (run.watcher != nullptr) run.watcher->see_input(w.output_group, mixed, {});
  if (run.last == LayerStage::kAttentionOutput) return std::nullopt;
  return mixed;
}

}  // namespace

void run_attention(const DecoderState& s, int64_t layer, std::span<const SequencePart> batch, HalfRows rows,
                   const HalfRun& run) {
  const AttentionWeights& w = s.layers[at(layer)].attention;
  const auto m = static_cast<int64_t>(rows.in.size()) / s.shape.hidden;
  std::optional<std::vector<float>> mixed;
  if (run.late == nullptr) {
    mixed = mix_heads(s, layer, batch, rows, run);
    if (!mixed) return;
  }
  std::vector<float> x(rows.in.size());
  s.weights.multiply(w.o, mixed ? mixed->data() : run.late, m, x.data());
  if (w.norm_behind) cpu::rms_norm(x.data(), m, s.weights.read(w.norm_behind), s.shape.epsilon, x.data());
  for (size_t i = 0; i < x.size(); ++i) rows.out[i] += x[i];
}

}  // namespace twofour
