#include <algorithm>
#include <cmath>

#include "lib/base/threads/parallel.h"
#include "lib/run/gradients/layer_blocks.h"

namespace twofour {
namespace {

/// Queries, keys and values of all tokens, or their gradients.
struct HeadRows {
  std::vector<float> q, k, v;
};

void clip_rows(std::vector<float>& x, double limit) {
  const auto most = static_cast<float>(limit);
  for (float& v : x) v = std::clamp(v, -most, most);
}

/// Clipped numbers have no gradient.
void clip_gradient(const std::vector<float>& clipped, double limit, std::vector<float>& d) {
  for (size_t i = 0; i < d.size(); ++i) {
    if (std::abs(clipped[i]) >= static_cast<float>(limit)) d[i] = 0;
  }
}

/// Copies columns [from, from + width) of rows of `stride` numbers.
std::vector<float> columns_of(const std::vector<float>& rows, int64_t stride, int64_t from, int64_t width) {
  std::vector<float> out(rows.size() / at(stride) * at(width));
  for (size_t i = 0; i < out.size() / at(width); ++i)
    std::copy_n(rows.data() + i * at(stride) + at(from), width, out.data() + i * at(width));
  return out;
}

/// Writes rows of `width` numbers to columns from `from` on of rows of `stride` numbers.
void put_columns(const std::vector<float>& some, int64_t width, int64_t stride, int64_t from,
                 std::vector<float>& rows) {
  for (size_t i = 0; i < some.size() / at(width); ++i)
    std::copy_n(some.data() + i * at(width), width, rows.data() + i * at(stride) + at(from));
}

}  // namespace

struct AttentionGradient::Activations {
  std::vector<float> x;                           ///< the input of the first linears
  HeadRows plain, heads;                          ///< before norms, and as attention sees them
  std::vector<float> gates;                       ///< logits of gates
  std::vector<float> q_low, q_latent;             ///< before and after the norm of queries' latents
  std::vector<float> kv_low, kv_part, kv_latent;  ///< whole, without rotated numbers, and after its norm
  std::vector<float> read, mixed;                 ///< before and after gates
  std::vector<float> output;                      ///< before the norm that follows; only if there is one

  void project_plain(const DecoderState& s, const AttentionWeights& w) {
    const AttentionShape& a = s.shape.attention;
    plain = {multiply_rows_of(s, w.q, x), multiply_rows_of(s, w.k, x), multiply_rows_of(s, w.v, x)};
    if (a.has_gate) {
      const std::vector<float> both = std::move(plain.q);
      plain.q = columns_of(both, 2 * a.head_size, 0, a.head_size);
      gates = columns_of(both, 2 * a.head_size, a.head_size, a.head_size);
    }
    heads = plain;
    if (a.norm != HeadNorm::kNone) {
      heads.q = norm_of(s, w.q_norm, plain.q, s.shape.epsilon);
      heads.k = norm_of(s, w.k_norm, plain.k, s.shape.epsilon);
    }
    if (a.clip <= 0) return;
    for (std::vector<float>* some : {&heads.q, &heads.k, &heads.v}) clip_rows(*some, a.clip);
    clipped = heads;
  }

  void project_latent(const DecoderState& s, const AttentionWeights& w) {
    const AttentionShape& a = s.shape.attention;
    if (a.q_rank > 0) {
      q_low = multiply_rows_of(s, w.q_a, x);
      q_latent = norm_of(s, w.q_a_norm, q_low, kLatentEpsilon);
      heads.q = multiply_rows_of(s, w.q_b, q_latent);
    } else {
      heads.q = multiply_rows_of(s, w.q, x);
    }
    const int64_t from = a.rotated_from, rotated = a.head_size - from, width = a.kv_rank + rotated;
    kv_low = multiply_rows_of(s, w.kv_a, x);
    kv_part = columns_of(kv_low, width, 0, a.kv_rank);
    kv_latent = norm_of(s, w.kv_a_norm, kv_part, kLatentEpsilon);
    const std::vector<float> both = multiply_rows_of(s, w.kv_b, kv_latent);
    heads.v = columns_of(both, from + a.value_size, from, a.value_size);
    heads.k.resize(heads.v.size() / at(a.value_size) * at(a.head_size));
    put_columns(columns_of(both, from + a.value_size, 0, from), from, a.head_size, 0, heads.k);
    for (size_t i = 0; i < heads.k.size() / at(a.head_size); ++i)
      std::copy_n(kv_low.data() + i / at(a.heads) * at(width) + at(a.kv_rank), rotated,
                  heads.k.data() + i * at(a.head_size) + at(from));
  }

  HeadRows clipped;  ///< before rotation; only if there is a limit
};

namespace {

/// Rotates queries and keys, or rotates their gradients back.
void rotate_heads(const DecoderState& s, int64_t layer, std::span<const SequencePart> batch, bool backward,
                  HeadRows& h) {
  const AttentionShape& a = s.shape.attention;
  const bool is_own = s.shape.windows[at(layer)] > 0 && !a.window_frequencies.empty();
  const cpu::Rotary rotary{is_own ? a.window_frequencies : a.frequencies, a.amplitude, a.interleaved,
                           backward};
  int64_t row = 0;
  for (const SequencePart& part : batch) {
    const int64_t q = a.heads * a.head_size, k = a.kv_heads * a.head_size;
    cpu::rotate(rotary, h.q.data() + row * q, part.count, q, a.heads, a.head_size, a.rotated_from,
                part.begin);
    cpu::rotate(rotary, h.k.data() + row * k, part.count, k, a.kv_heads, a.head_size, a.rotated_from,
                part.begin);
    row += part.count;
  }
}

cpu::Attention attention_of(const DecoderState& s, int64_t layer, const HeadRows& h, int64_t row,
                            int64_t count, std::span<const float> sinks) {
  const AttentionShape& a = s.shape.attention;
  return {.queries = count,
          .keys = count,
          .heads = a.heads,
          .kv_heads = a.kv_heads,
          .head_size = a.head_size,
          .value_size = a.value_size,
          .q = h.q.data() + row * a.heads * a.head_size,
          .k = h.k.data() + row * a.kv_heads * a.head_size,
          .v = h.v.data() + row * a.kv_heads * a.value_size,
          .sinks = sinks,
          .scale = static_cast<float>(a.scale),
          .window = s.shape.windows[at(layer)]};
}

std::vector<float> sinks_of(const DecoderState& s, const AttentionWeights& w) {
  return w.sinks ? s.weights.read(w.sinks) : std::vector<float>{};
}

/// The gradients of rotated queries and keys, and of values.
HeadRows head_gradients(const DecoderState& s, int64_t layer, std::span<const SequencePart> batch,
                        const HeadRows& h, const std::vector<float>& dread) {
  const AttentionShape& a = s.shape.attention;
  const std::vector<float> sinks = sinks_of(s, s.layers[at(layer)].attention);
  HeadRows d{std::vector<float>(h.q.size()), std::vector<float>(h.k.size()), std::vector<float>(h.v.size())};
  std::vector<int64_t> begins;
  int64_t row = 0;
  for (const SequencePart& part : batch) {
    begins.push_back(row);
    row += part.count;
  }
  parallel_for(batch.size() * at(a.kv_heads), [&](size_t i) {
    const size_t part = i / at(a.kv_heads);
    const int64_t first = begins[part];
    add_attention_gradient(
        attention_of(s, layer, h, first, batch[part].count, sinks), static_cast<int64_t>(i % at(a.kv_heads)),
        dread.data() + first * a.heads * a.value_size,
        {d.q.data() + first * a.heads * a.head_size, d.k.data() + first * a.kv_heads * a.head_size,
         d.v.data() + first * a.kv_heads * a.value_size});
  });
  return d;
}

/// Adds the gradient of a linear's input.
void add_linear(const DecoderState& s, const ModelMatrix& w, size_t group, const std::vector<float>& x,
                const std::vector<float>& dy, std::vector<float>& dx, const GradientSight& sight) {
  sight.show(group, w, x, dy);
  add_input_gradient(s.weights, w, dy.data(), static_cast<int64_t>(dy.size()) / w.n, dx.data());
}

}  // namespace

AttentionGradient::AttentionGradient(const DecoderState& state, int64_t layer,
                                     std::span<const SequencePart> batch)
    : s_(state), layer_(layer), batch_(batch), a_(std::make_unique<Activations>()) {}
AttentionGradient::~AttentionGradient() = default;

std::vector<float> AttentionGradient::forward(std::span<const float> in) {
  const AttentionShape& a = s_.shape.attention;
  const AttentionWeights& w = s_.layers[at(layer_)].attention;
  a_->x = norm_of(s_, w.norm, in, s_.shape.epsilon);
  if (a.kv_rank > 0) {
    a_->project_latent(s_, w);
  } else {
    a_->project_plain(s_, w);
  }
  rotate_heads(s_, layer_, batch_, false, a_->heads);
  const std::vector<float> sinks = sinks_of(s_, w);
  const int64_t width = a.heads * a.value_size, m = static_cast<int64_t>(in.size()) / s_.shape.hidden;
  a_->read.resize(at(m * width));
  int64_t row = 0;
  for (const SequencePart& part : batch_) {
    cpu::attend(attention_of(s_, layer_, a_->heads, row, part.count, sinks), a_->read.data() + row * width);
    row += part.count;
  }
  a_->mixed = a_->read;
  for (size_t i = 0; i < a_->gates.size(); ++i) a_->mixed[i] *= 1.0f / (1.0f + std::exp(-a_->gates[i]));
  std::vector<float> out = multiply_rows_of(s_, w.o, a_->mixed);
  if (w.norm_behind) {
    a_->output = std::move(out);
    out = norm_of(s_, w.norm_behind, a_->output, s_.shape.epsilon);
  }
  for (size_t i = 0; i < out.size(); ++i) out[i] += in[i];
  return out;
}

void AttentionGradient::backward(std::span<const float> in, std::span<float> gradient, GradientSight sight) {
  const AttentionShape& a = s_.shape.attention;
  const AttentionWeights& w = s_.layers[at(layer_)].attention;
  std::vector<float> dy(gradient.begin(), gradient.end());
  if (w.norm_behind) dy = norm_gradient(s_, w.norm_behind, a_->output, s_.shape.epsilon, dy, sight);
  sight.show(w.output_group, w.o, a_->mixed, dy);
  std::vector<float> dread = input_gradient(s_, w.o, dy), dgates(a_->gates.size());
  for (size_t i = 0; i < dgates.size(); ++i) {
    const float gate = 1.0f / (1.0f + std::exp(-a_->gates[i]));
    dgates[i] = dread[i] * a_->read[i] * gate * (1.0f - gate);
    dread[i] *= gate;
  }
  HeadRows d = head_gradients(s_, layer_, batch_, a_->heads, dread);
  rotate_heads(s_, layer_, batch_, true, d);

  std::vector<float> dx(in.size());
  if (a.kv_rank > 0) {
    const int64_t from = a.rotated_from, rotated = a.head_size - from, width = a.kv_rank + rotated;
    if (a.q_rank > 0) {
      sight.show(w.q_group, w.q_b, a_->q_latent, d.q);
      const std::vector<float> dlatent = input_gradient(s_, w.q_b, d.q);
      add_linear(s_, w.q_a, w.input_group, a_->x,
                 norm_gradient(s_, w.q_a_norm, a_->q_low, kLatentEpsilon, dlatent, sight), dx, sight);
    } else {
      add_linear(s_, w.q, w.input_group, a_->x, d.q, dx, sight);
    }
    std::vector<float> dboth(d.v.size() / at(a.value_size) * at(from + a.value_size)),
        dlow(a_->kv_low.size());
    put_columns(columns_of(d.k, a.head_size, 0, from), from, from + a.value_size, 0, dboth);
    put_columns(d.v, a.value_size, from + a.value_size, from, dboth);
    sight.show(w.latent_group, w.kv_b, a_->kv_latent, dboth);
    const std::vector<float> dlatent = input_gradient(s_, w.kv_b, dboth);
    put_columns(norm_gradient(s_, w.kv_a_norm, a_->kv_part, kLatentEpsilon, dlatent, sight), a.kv_rank, width,
                0, dlow);
    for (size_t i = 0; i < d.k.size() / at(a.head_size); ++i) {  // all heads share the rotated numbers
      const float* own = d.k.data() + i * at(a.head_size) + at(from);
      float* to = dlow.data() + i / at(a.heads) * at(width) + at(a.kv_rank);
      for (int64_t j = 0; j < rotated; ++j) to[j] += own[j];
    }
    add_linear(s_, w.kv_a, w.input_group, a_->x, dlow, dx, sight);
  } else {
    if (a.clip > 0) {
      clip_gradient(a_->clipped.q, a.clip, d.q);
      clip_gradient(a_->clipped.k, a.clip, d.k);
      clip_gradient(a_->clipped.v, a.clip, d.v);
    }
    if (a.norm != HeadNorm::kNone) {
      d.q = norm_gradient(s_, w.q_norm, a_->plain.q, s_.shape.epsilon, d.q, sight);
      d.k = norm_gradient(s_, w.k_norm, a_->plain.k, s_.shape.epsilon, d.k, sight);
    }
    if (a.has_gate) {
      const std::vector<float> dq = std::move(d.q);
      d.q.resize(2 * dq.size());
      put_columns(dq, a.head_size, 2 * a.head_size, 0, d.q);
      put_columns(dgates, a.head_size, 2 * a.head_size, a.head_size, d.q);
    }
    add_linear(s_, w.q, w.input_group, a_->x, d.q, dx, sight);
    add_linear(s_, w.k, w.input_group, a_->x, d.k, dx, sight);
    add_linear(s_, w.v, w.input_group, a_->x, d.v, dx, sight);
  }
  const std::vector<float> back = norm_gradient(s_, w.norm, in, s_.shape.epsilon, dx, sight);
  for (size_t i = 0; i < back.size(); ++i) gradient[i] += back[i];
}

}  // namespace twofour
