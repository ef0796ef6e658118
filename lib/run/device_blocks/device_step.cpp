#include <array>
#include <utility>

#include "lib/run/device_blocks/device_sequence.h"

namespace twofour {

// Runs one token as a CUDA graph of short kernels. Each kernel starts while the previous one ends. These were
// tried without gain: all layers in one launch, prefetching weights of the next layer, more blocks per
// multiprocessor.
void DeviceSequence::step() {
  const cuda::Stream stream = run_.stream().get();
  const ModelShape& s = state_.shape;
  const DeviceEnds& ends = run_.weights().ends();
  auto* state = b_.state.as<cuda::TokenState>();
  hidden_of_token_ = b_.hidden.as<float>();
  pending_ = half_in_ = half_out_ = nullptr;
  const bool is_mixed = s.streams.are_mixed();
  float* embedded = is_mixed ? b_.read.as<float>() : hidden_of_token_;
  cuda::take_rows(ends.embedding, &state->token, 1, embedded, stream);
  if (is_mixed) cuda::begin_streams(embedded, 1, s.streams.count, s.hidden, hidden_of_token_, stream);
  for (int64_t layer = 0; layer < s.layers; ++layer) {
    const DeviceLayer& w = run_.weights().layer(layer);
    step_half(layer, w, LayerHalf::kAttention);
    step_half(layer, w, LayerHalf::kFeedForward);
    if (!run_.weights().is_resident()) run_.weights().leave(layer, run_.stream());
  }
  if (is_mixed) {
    half_in_ = b_.read.as<float>();
    cuda::mix_streams(run_.stream_mixer(ends.streams, true), hidden_of_token_, 1, half_in_, nullptr,
                      b_.sums.as(), stream);
  }
  cuda::multiply_row({&ends.head, 1}, normed_input(ends.norm), {b_.logits.as<float>(), false}, stream);
  cuda::choose_token(b_.logits.as<float>(), s.vocabulary, b_.choice.as(), state,
                     history_.as<cuda::LogitFigures>(), stream);
  half_in_ = nullptr;
}

/// Half a layer. If it reads from several streams, or has a norm after it, its output is in memory of its
/// own before it counts in the residual stream.
void DeviceSequence::step_half(int64_t layer, const DeviceLayer& w, LayerHalf half) {
  const cuda::Stream stream = run_.stream().get();
  const ModelShape& s = state_.shape;
  const bool is_attention = half == LayerHalf::kAttention, is_mixed = s.streams.are_mixed();
  const float* norm = is_attention ? w.norm_behind_attention : w.norm_behind_feed_forward;
  const cuda::StreamMixer mixer =
      run_.stream_mixer(is_attention ? w.attention_streams : w.feed_forward_streams);
  float* mix = b_.mix.as<float>();
  if (is_mixed) {
    half_in_ = b_.read.as<float>();
    cuda::mix_streams(mixer, hidden_of_token_, 1, half_in_, mix, b_.sums.as(), stream);
  }
  if (is_mixed || norm != nullptr) half_out_ = b_.half_out.as<float>(), is_half_out_empty_ = true;
  if (!is_attention) {
    step_feed_forward(w);
  } else if (w.delta) {
    step_delta(layer, w);
  } else if (w.compressed) {
    step_compressed(layer, w);
  } else {
    step_attention(layer, w);
  }
  if (half_out_ == nullptr) return;
  if (pending_ != nullptr) cuda::add_floats(sum(), std::exchange(pending_, nullptr), s.hidden, stream);
  if (norm != nullptr)
    cuda::rms_norm({half_out_, s.hidden, norm, 1, s.hidden, s.epsilon, half_out_, s.hidden}, stream);
  if (is_mixed) {
    cuda::write_streams(mixer, mix, half_out_, 1, hidden_of_token_, stream);
  } else {
    cuda::add_floats(hidden_of_token_, half_out_, s.hidden, stream);
  }
  half_in_ = half_out_ = nullptr;
}

cuda::RowOutput DeviceSequence::output() {
  if (half_out_ == nullptr) return {hidden_of_token_, true};
  return {half_out_, !std::exchange(is_half_out_empty_, false)};
}

float* DeviceSequence::sum() {
  const cuda::RowOutput to = output();
  if (!to.adds)
    cuda::clear_device_bytes(to.out, at(state_.shape.hidden) * sizeof(float), run_.stream().get());
  return to.out;
}

/// The input of the next product: the residual stream plus the pending output of a runtime layer, with a
/// norm. From then on the stream is in other memory.
cuda::RowInput DeviceSequence::normed_input(const float* norm) {
  cuda::RowInput in{.x = input(), .norm = norm, .epsilon = state_.shape.epsilon};
  if (pending_ == nullptr) return in;
  in.more = std::exchange(pending_, nullptr);
  hidden_of_token_ =
      hidden_of_token_ == b_.hidden.as<float>() ? b_.other_hidden.as<float>() : b_.hidden.as<float>();
  in.sum = hidden_of_token_;
  return in;
}

void DeviceSequence::step_delta(int64_t layer, const DeviceLayer& w) {
  const cuda::Stream stream = run_.stream().get();
  cuda::multiply_row(w.delta.in, normed_input(w.attention_norm), {b_.heads.as<float>(), false}, stream);
  const DevicePart caches = caches_of(layer);
  cuda::DeltaTokens token = run_.delta_tokens(w);
  token.m = 1, token.position = &b_.state.as<cuda::TokenState>()->position;
  token.x = b_.heads.as<float>(), token.out = b_.mixed.as<float>();
  token.window = caches.window, token.state = caches.recurrent;
  token.mixed = b_.delta_mixed.as<float>(), token.gates = b_.delta_gates.as<float>();
  cuda::run_delta(token, stream);
  cuda::multiply_row({&w.delta.out, 1}, {.x = b_.mixed.as<float>()}, output(), stream);
}

void DeviceSequence::step_latent(const DeviceLayer& w, float*& q, float*& k, float*& v) {
  const cuda::Stream stream = run_.stream().get();
  const ModelShape& s = state_.shape;
  const AttentionShape& a = s.attention;
  q = b_.heads.as<float>(), k = b_.keys.as<float>(), v = b_.values.as<float>();
  float *low = b_.low.as<float>(), *latent = b_.latent.as<float>(), *both = b_.both.as<float>();
  if (a.q_rank > 0) {
    cuda::multiply_row({&w.q_a, 1}, normed_input(w.attention_norm), {latent, false}, stream);
    const cuda::RowInput in{.x = latent, .norm = w.q_a_norm, .epsilon = kLatentEpsilon};
    cuda::multiply_row({&w.q_b, 1}, in, {q, false}, stream);
  } else {
    cuda::multiply_row({&w.q, 1}, normed_input(w.attention_norm), {q, false}, stream);
  }
  cuda::multiply_row({&w.kv_a, 1}, normed_input(w.attention_norm), {low, false}, stream);
  const cuda::RowInput in{.x = low, .norm = w.kv_a_norm, .epsilon = kLatentEpsilon};
  cuda::multiply_row({&w.kv_b, 1}, in, {both, false}, stream);
  cuda::split_latent_heads(
      {1, a.heads, a.head_size, a.value_size, a.head_size - a.rotated_from, both, low, w.kv_a.n, k, v},
      stream);
}

void DeviceSequence::step_attention(int64_t layer, const DeviceLayer& w) {
  const cuda::Stream stream = run_.stream().get();
  const ModelShape& s = state_.shape;
  const AttentionShape& a = s.attention;
  float *q = b_.heads.as<float>(), *k = q + w.q.n, *v = k + w.k.n;
  if (a.kv_rank > 0) {
    step_latent(w, q, k, v);
  } else {
    const std::array matrices{w.q, w.k, w.v};
    cuda::multiply_row(matrices, normed_input(w.attention_norm), {q, false}, stream);
    if (a.norm == HeadNorm::kAll) {
      cuda::rms_norm({q, w.q.n, w.q_norm, 1, w.q.n, s.epsilon, q, w.q.n}, stream);
      cuda::rms_norm({k, w.k.n, w.k_norm, 1, w.k.n, s.epsilon, k, w.k.n}, stream);
    }
  }
  const int32_t* position = &b_.state.as<cuda::TokenState>()->position;
  cuda::PreparedHeads prepared;
  prepared.count = 3;
  cuda::HeadRows &queries = prepared.rows[0] = run_.head_rows(layer, w, false),
                 &keys = prepared.rows[1] = run_.head_rows(layer, w, true), &values = prepared.rows[2];
  values.heads = a.kv_heads, values.head_size = a.value_size, values.clip = keys.clip;
  queries.m = keys.m = values.m = 1;
  queries.x = q;
  keys.x = k, values.x = v;
  const DevicePart caches = caches_of(layer);
  keys.out = caches.keys, keys.out_stride = a.kv_heads * a.head_size;
  values.out = caches.values, values.out_stride = a.kv_heads * a.value_size;
  keys.out_by_position = values.out_by_position = true;
  cuda::DeviceAttention in;
  in.queries = 1;
  in.heads = a.heads, in.kv_heads = a.kv_heads, in.head_size = a.head_size, in.value_size = a.value_size;
  in.k = keys.out, in.v = values.out;
  in.sinks = w.sinks;
  in.scale = static_cast<float>(a.scale);
  in.window = s.windows[at(layer)];
  in.position = position;
  cuda::attend_one(in, prepared, b_.mixed.as<float>(), b_.attention.as(), stream);
  if (a.has_gate) {
    cuda::gate_heads({1, a.heads, a.head_size, q + a.head_size, w.q.n, 2 * a.head_size, b_.mixed.as<float>()},
                     stream);
  }
  cuda::multiply_row({&w.o, 1}, {.x = b_.mixed.as<float>()}, output(), stream);
}

void DeviceSequence::step_block(const RuntimeLayer& block, int64_t top_k, const int32_t* ids,
                                const float* weights) {
  cuda::MoeTokens tokens;
  tokens.m = 1, tokens.topk = top_k, tokens.type = cuda::Float::f32;
  tokens.hidden = b_.normed.as(), tokens.topk_ids = ids, tokens.topk_weights = weights;
  tokens.out = b_.added.as();
  block.forward(tokens, b_.workspace.as(), b_.workspace.bytes(), run_.stream().get());
}

/// Runs the dense MLP or the shared expert.
void DeviceSequence::step_mlp(const DeviceLayer& w) {
  const cuda::Stream stream = run_.stream().get();
  const int64_t h = state_.shape.hidden;
  float *normed = b_.normed.as<float>(), *added = b_.added.as<float>();
  const bool is_gated = w.shared_gate.n > 0;
  if (w.mlp.block) {
    step_block(*w.mlp.block, 1, b_.one_id.as<int32_t>(), b_.one_weight.as<float>());
  } else {
    const std::array matrices{w.mlp.gate, w.mlp.up};
    float* gates = b_.gates.as<float>();
    cuda::RowInput first{.x = input(), .norm = w.feed_forward_norm, .epsilon = state_.shape.epsilon};
    if (w.experts) first = {.x = normed};
    cuda::multiply_row(matrices, first, {gates, false}, stream);
    const cuda::RowInput in{.x = gates, .up = gates + w.mlp.gate.n, .gate = run_.gate_units()};
    cuda::multiply_row({&w.mlp.down, 1}, in, is_gated ? cuda::RowOutput{added, false} : output(), stream);
  }
  if (is_gated) {
    float* gate = b_.gate_logit.as<float>();
    cuda::multiply_row({&w.shared_gate, 1}, {.x = normed}, {gate, false}, stream);
    cuda::scale_by_gates(added, gate, 1, h, stream);
  }
  if (is_gated || w.mlp.block) cuda::add_floats(sum(), added, h, stream);
}

void DeviceSequence::step_experts(const DeviceLayer& w) {
  const cuda::Stream stream = run_.stream().get();
  const ModelShape& s = state_.shape;
  float* normed = b_.normed.as<float>();
  auto* ids = b_.ids.as<int32_t>();
  auto* weights = b_.weights.as<float>();
  if (w.experts.block) {
    step_block(*w.experts.block, s.top_k, ids, weights);
    pending_ = b_.added.as<float>();
    return;
  }
  float *gates = b_.gates.as<float>(), *out = b_.out.as<float>();
  cuda::multiply_expert_rows(w.experts.gate_up, ids, s.top_k, {.x = normed}, {gates, false}, stream);
  const cuda::RowInput in{
      .x = gates, .stride = 2 * s.expert_width, .up = gates + s.expert_width, .gate = run_.gate_units()};
  cuda::multiply_expert_rows(w.experts.down, ids, s.top_k, in, {out, false}, stream);
  cuda::add_weighted_rows(out, weights, 1, s.top_k, s.hidden, sum(), stream);
}

void DeviceSequence::step_feed_forward(const DeviceLayer& w) {
  const cuda::Stream stream = run_.stream().get();
  const int64_t h = state_.shape.hidden;
  float *in = input(), *normed = b_.normed.as<float>();
  if (w.experts) {
    cuda::RoutedToken token;
    token.rule = run_.router_rule(w, &b_.state.as<cuda::TokenState>()->token);
    token.router = w.router;
    token.in = {.x = in, .norm = w.feed_forward_norm, .epsilon = state_.shape.epsilon};
    token.normed = normed;
    token.ids = b_.ids.as<int32_t>(), token.weights = b_.weights.as<float>();
    token.error = run_.router_error(), token.sent = b_.routed.as<uint64_t>();
    cuda::route_token(token, stream);
  } else if (w.mlp.block) {
    cuda::rms_norm({in, h, w.feed_forward_norm, 1, h, state_.shape.epsilon, normed, h}, stream);
  }
  if (w.mlp) step_mlp(w);
  if (w.experts) step_experts(w);
}

}  // namespace twofour
