#include "lib/run/device_blocks/device_run.h"

#include <fmt/format.h>

#include <algorithm>

#include "formats/error.h"
#include "kernels/device/check.h"

namespace twofour {

bool DeviceRun::hides_inputs(int64_t layer, LayerHalf half, const HalfRun& run) {
  const DeviceLayer& w = weights_.layer(layer);
  const bool is_looked_into = run.watcher != nullptr || run.last || run.chosen != nullptr;
  return half == LayerHalf::kFeedForward && is_looked_into && (w.mlp.block || w.experts.block);
}

void DeviceRun::run_half(int64_t layer, LayerHalf half, std::span<const SequencePart> batch,
                         std::span<float> hidden, const HalfRun& run) {
  if (hides_inputs(layer, half, run)) return run_half_on_cpu(state_, layer, half, batch, hidden, run);
  float* rows = hidden_.of<float>(static_cast<int64_t>(hidden.size()));
  cuda::copy_to_device(hidden.data(), rows, hidden.size_bytes(), stream_);
  run_half_in_place(layer, half, batch, rows, run);
  if (!run.last) cuda::copy_to_host(rows, hidden.data(), hidden.size_bytes(), stream_);
}

void DeviceRun::run_half_in_place(int64_t layer, LayerHalf half, std::span<const SequencePart> batch,
                                  float* hidden, const HalfRun& run) {
  const DeviceLayer& w = weights_.layer(layer);
  int64_t m = 0;
  std::vector<DevicePart> parts;
  std::vector<int32_t> ids;
  for (const SequencePart& p : batch) {
    check(p.cache == nullptr, "no caches of the host on the device");
    parts.push_back({p.count, p.begin});
    m += p.count;
    if (!w.table) continue;
    check(p.ids != nullptr, "the ids of the tokens");
    ids.insert(ids.end(), p.ids, p.ids + p.count);
  }
  if (hides_inputs(layer, half, run)) {
    std::vector<float> rows = download(hidden, m * state_.shape.residual());
    run_half_on_cpu(state_, layer, half, batch, rows, run);
    cuda::copy_to_device(rows.data(), hidden, rows.size() * sizeof(float), stream_);
    return;
  }
  int32_t* tokens = nullptr;
  if (w.table) {
    tokens = tokens_.of<int32_t>(m);
    cuda::copy_to_device(ids.data(), tokens, ids.size() * sizeof(int32_t), stream_);
  }
  run_half(layer, half, parts, tokens, hidden, m, run);
  weights_.leave(layer, stream_);
  // The next layer is read while this layer runs.
  if (half == LayerHalf::kFeedForward && !weights_.is_resident())
    weights_.layer((layer + 1) % state_.shape.layers);
  if (half == LayerHalf::kFeedForward) check_routers();
  stream_.synchronize();
}

void DeviceRun::run_half(int64_t layer, LayerHalf half, std::span<const DevicePart> parts,
                         const int32_t* tokens, float* hidden, int64_t m, const HalfRun& run) {
  const DeviceLayer& w = weights_.layer(layer);
  const bool is_attention = half == LayerHalf::kAttention, is_mixed = state_.shape.streams.are_mixed();
  const float* norm = is_attention ? w.norm_behind_attention : w.norm_behind_feed_forward;
  const auto run_rows = [&](const Rows& rows) {
    if (!is_attention) {
      run_feed_forward(layer, tokens, rows, run);
    } else if (w.delta) {
      run_delta(layer, parts, rows, run);
    } else if (w.compressed) {
      run_compressed(layer, parts, rows, run);
    } else {
      run_attention(layer, parts, rows, run);
    }
  };
  if (!is_mixed && norm == nullptr) return run_rows({hidden, hidden, m});
  const int64_t h = state_.shape.hidden;
  const cuda::StreamMixer mixer = stream_mixer(is_attention ? w.attention_streams : w.feed_forward_streams);
  const float* in = hidden;
  float* mix = mix_.of<float>(m * mixer.mix());
  if (is_mixed) {
    float* read = read_.of<float>(m * h);
    const auto bytes = static_cast<int64_t>(cuda::mix_streams_workspace(mixer, m));
    cuda::mix_streams(mixer, hidden, m, read, mix, sums_.of<uint8_t>(bytes), stream_.get());
    in = read;
  }
  float* out = half_out_.of<float>(m * h);
  cuda::clear_device_bytes(out, at(m * h) * sizeof(float), stream_.get());
  run_rows({in, out, m});
  if (run.last) return;
  if (norm != nullptr) cuda::rms_norm({out, h, norm, m, h, state_.shape.epsilon, out, h}, stream_.get());
  if (is_mixed) {
    cuda::write_streams(mixer, mix, out, m, hidden, stream_.get());
  } else {
    cuda::add_floats(hidden, out, m * h, stream_.get());
  }
}

const float* DeviceRun::read_head_stream(const float* hidden, int64_t m) {
  if (!state_.shape.streams.are_mixed()) return hidden;
  const cuda::StreamMixer mixer = stream_mixer(weights_.ends().streams, true);
  float* read = read_.of<float>(m * state_.shape.hidden);
  const auto bytes = static_cast<int64_t>(cuda::mix_streams_workspace(mixer, m));
  cuda::mix_streams(mixer, hidden, m, read, nullptr, sums_.of<uint8_t>(bytes), stream_.get());
  return read;
}

void DeviceRun::run_head(std::span<const float> hidden, std::span<float> logits) {
  const auto m = static_cast<int64_t>(hidden.size()) / state_.shape.residual();
  float* rows = hidden_.of<float>(static_cast<int64_t>(hidden.size()));
  cuda::copy_to_device(hidden.data(), rows, hidden.size_bytes(), stream_);
  float* out = logits_.of<float>(static_cast<int64_t>(logits.size()));
  run_head(rows, m, out);
  cuda::copy_to_host(out, logits.data(), logits.size_bytes(), stream_);
}

std::vector<cuda::LogitFigures> DeviceRun::score(std::span<const float> hidden,
                                                 std::span<const int32_t> tokens, const DeviceRun* other) {
  const auto m = static_cast<int64_t>(tokens.size());
  const int64_t vocabulary = state_.shape.vocabulary;
  float* rows = hidden_.of<float>(static_cast<int64_t>(hidden.size()));
  int32_t* device_tokens = tokens_.of<int32_t>(m);
  cuda::copy_to_device(hidden.data(), rows, hidden.size_bytes(), stream_);
  cuda::copy_to_device(tokens.data(), device_tokens, tokens.size_bytes(), stream_);
  float* logits = logits_.of<float>(m * vocabulary);
  run_head(rows, m, logits);
  auto* figures = figures_.of<cuda::LogitFigures>(m);
  // The other model has already waited for its own figures.
  cuda::logit_figures(
      logits, m, vocabulary, device_tokens, other != nullptr ? other->logits_.last<float>() : nullptr,
      other != nullptr ? other->figures_.last<cuda::LogitFigures>() : nullptr, figures, stream_.get());
  return download(figures, m);
}

void DeviceRun::run_layer(int64_t layer, std::span<const DevicePart> parts, const int32_t* tokens,
                          float* hidden, int64_t m) {
  run_half(layer, LayerHalf::kAttention, parts, tokens, hidden, m, {});
  run_half(layer, LayerHalf::kFeedForward, parts, tokens, hidden, m, {});
  weights_.leave(layer, stream_);
}

void DeviceRun::embed(const int32_t* tokens, int64_t m, float* hidden) {
  const StreamShape& streams = state_.shape.streams;
  const int64_t h = state_.shape.hidden;
  float* rows = streams.are_mixed() ? read_.of<float>(m * h) : hidden;
  cuda::take_rows(weights_.ends().embedding, tokens, m, rows, stream_.get());
  if (streams.are_mixed()) cuda::begin_streams(rows, m, streams.count, h, hidden, stream_.get());
}

void DeviceRun::run_head(const float* hidden, int64_t m, float* logits) {
  const int64_t h = state_.shape.hidden;
  const float* in = read_head_stream(hidden, m);
  float* x = normed_.of<float>(m * h);
  cuda::rms_norm({in, h, weights_.ends().norm, m, h, state_.shape.epsilon, x, h}, stream_.get());
  products_.set_rows(x, m, h, stream_.get());
  products_.multiply(weights_.ends().head, logits, state_.shape.vocabulary, false, stream_.get());
}

void DeviceRun::check_routers() {
  if (state_.shape.experts == 0) return;
  int32_t error = 0;
  cuda::copy_to_host(error_.as(), &error, sizeof error, stream_);
  if (error == 0) return;
  throw Error(
      fmt::format("{}: expected finite logits of routers, found others", state_.checkpoint.path().string()));
}

cuda::RouterRule DeviceRun::router_rule(const DeviceLayer& layer, const int32_t* tokens) const {
  const ModelShape& s = state_.shape;
  return {s.router, s.experts, s.top_k, layer.correction, layer.table, tokens};
}

cuda::StreamMixer DeviceRun::stream_mixer(const DeviceStreams& w, bool is_head) const {
  const StreamShape& s = state_.shape.streams;
  cuda::StreamMixer mixer;
  mixer.streams = s.count, mixer.hidden = state_.shape.hidden;
  mixer.weight = w.weight, mixer.base = w.base, mixer.scale = w.scale;
  mixer.iterations = s.iterations, mixer.epsilon = s.epsilon, mixer.norm_epsilon = state_.shape.epsilon;
  mixer.is_head = is_head;
  return mixer;
}

cuda::GateUnits DeviceRun::gate_units() const {
  const GateShape& g = state_.shape.gate;
  if (g.is_gelu) return {cuda::kGeluSlope, 0, g.limit, cuda::kGeluCubic};
  return {g.slope, g.offset, g.limit};
}

cuda::HeadRows DeviceRun::head_rows(int64_t layer, const DeviceLayer& w, bool are_keys) const {
  const AttentionShape& a = state_.shape.attention;
  cuda::HeadRows h;
  h.heads = are_keys ? a.kv_heads : a.heads;
  h.head_size = a.head_size;
  if (a.has_gate && !are_keys) h.head_stride = 2 * a.head_size;
  if (a.norm == HeadNorm::kEach) h.norm = are_keys ? w.k_norm : w.q_norm;
  h.epsilon = state_.shape.epsilon;
  h.clip = static_cast<float>(a.clip);
  const bool is_windowed = state_.shape.windows[at(layer)] > 0;
  h.frequencies = is_windowed ? weights_.ends().window_frequencies : weights_.ends().frequencies;
  h.pairs = static_cast<int64_t>(a.frequencies.size());
  h.amplitude = a.amplitude;
  h.interleaved = a.interleaved;
  h.rotated_from = a.rotated_from;
  return h;
}

void DeviceRun::see(const HalfRun& run, size_t group, const float* x, int64_t m, int64_t k,
                    std::span<const int64_t> tokens) {
  if (run.watcher == nullptr || !run.watcher->wants(group)) return;
  if (run.watcher->see_on_device(group, x, m, k, tokens, stream_)) return;
  run.watcher->see_input(group, download(x, m * k), tokens);
}

bool DeviceRun::project_plain(const DeviceLayer& w, float* x, int64_t m, Heads& heads) {
  const AttentionShape& a = state_.shape.attention;
  const int64_t stride = w.q.n + w.k.n + w.v.n;
  float* all = heads_.of<float>(m * stride);
  heads = {all, all + w.q.n, all + w.q.n + w.k.n, stride, stride, stride};
  products_.set_rows(x, m, state_.shape.hidden, stream_.get());
  products_.multiply(std::array{w.q, w.k, w.v}, all, stride, stream_.get());
  if (a.norm == HeadNorm::kAll) {
    cuda::rms_norm({heads.q, stride, w.q_norm, m, w.q.n, state_.shape.epsilon, heads.q, stride},
                   stream_.get());
    cuda::rms_norm({heads.k, stride, w.k_norm, m, w.k.n, state_.shape.epsilon, heads.k, stride},
                   stream_.get());
  }
  return true;
}

bool DeviceRun::project_latent(const DeviceLayer& w, const AttentionWeights& groups, float* x, int64_t m,
                               const HalfRun& run, Heads& heads) {
  const AttentionShape& a = state_.shape.attention;
  const bool ends = run.last == LayerStage::kLatent;
  const int64_t width = a.heads * a.head_size, rotated = a.head_size - a.rotated_from;
  heads.q = heads_.of<float>(m * width), heads.q_stride = width;
  products_.set_rows(x, m, state_.shape.hidden, stream_.get());
  const int64_t low_stride = w.kv_a.n;
  float* low = low_.of<float>(m * low_stride);
  products_.multiply(w.kv_a, low, low_stride, false, stream_.get());
  if (a.q_rank > 0) {
    float* latent = latent_.of<float>(m * a.q_rank);
    products_.multiply(w.q_a, latent, a.q_rank, false, stream_.get());
    cuda::rms_norm({latent, a.q_rank, w.q_a_norm, m, a.q_rank, kLatentEpsilon, latent, a.q_rank},
                   stream_.get());
    see(run, groups.q_group, latent, m, a.q_rank);
    if (!ends) {
      products_.set_rows(latent, m, a.q_rank, stream_.get());
      products_.multiply(w.q_b, heads.q, width, false, stream_.get());
    }
  } else if (!ends) {
    products_.multiply(w.q, heads.q, width, false, stream_.get());
  }
  float* latent = latent_.of<float>(m * a.kv_rank);
  cuda::rms_norm({low, low_stride, w.kv_a_norm, m, a.kv_rank, kLatentEpsilon, latent, a.kv_rank},
                 stream_.get());
  see(run, groups.latent_group, latent, m, a.kv_rank);
  if (ends) return false;
  float* both = both_.of<float>(m * w.kv_b.n);
  products_.set_rows(latent, m, a.kv_rank, stream_.get());
  products_.multiply(w.kv_b, both, w.kv_b.n, false, stream_.get());
  heads.k_stride = a.heads * a.head_size, heads.v_stride = a.heads * a.value_size;
  heads.k = keys_.of<float>(m * heads.k_stride), heads.v = values_.of<float>(m * heads.v_stride);
  cuda::split_latent_heads(
      {m, a.heads, a.head_size, a.value_size, rotated, both, low, low_stride, heads.k, heads.v},
      stream_.get());
  return true;
}

void DeviceRun::run_attention(int64_t layer, std::span<const DevicePart> parts, const Rows& rows,
                              const HalfRun& run) {
  const DeviceLayer& w = weights_.layer(layer);
  const AttentionWeights& groups = state_.layers[at(layer)].attention;
  const AttentionShape& a = state_.shape.attention;
  const int64_t h = state_.shape.hidden, m = rows.m, mixed_width = a.heads * a.value_size;
  if (run.late != nullptr) {
    products_.set_rows(run.late, m, mixed_width, stream_.get());
    return products_.multiply(w.o, rows.out, h, true, stream_.get());
  }
  float* x = normed_.of<float>(m * h);
  cuda::rms_norm({rows.in, h, w.attention_norm, m, h, state_.shape.epsilon, x, h}, stream_.get());
  see(run, groups.input_group, x, m, h);
  if (run.last == LayerStage::kAttentionInput) return;
  Heads heads;
  const bool is_latent = a.kv_rank > 0;
  if (!is_latent && run.last == LayerStage::kLatent) return;
  if (!(is_latent ? project_latent(w, groups, x, m, run, heads) : project_plain(w, x, m, heads))) return;

  const int64_t key_width = a.kv_heads * a.head_size, value_width = a.kv_heads * a.value_size;
  float *keys = keys_.of<float>(m * key_width), *values = values_.of<float>(m * value_width);
  float* mixed = mixed_.of<float>(m * mixed_width);
  // Queries are prepared in place, unless gates are between them.
  const int64_t query_stride = a.has_gate ? a.heads * a.head_size : heads.q_stride;
  float* queries = a.has_gate ? queries_.of<float>(m * query_stride) : heads.q;
  int64_t row = 0;
  for (const DevicePart& part : parts) {
    const bool cached = part.keys != nullptr;
    cuda::PreparedHeads prepared;
    prepared.count = 3;
    prepared.begin = part.begin;
    cuda::HeadRows &q = prepared.rows[0] = head_rows(layer, w, false),
                   &k = prepared.rows[1] = head_rows(layer, w, true), &v = prepared.rows[2];
    v.heads = a.kv_heads, v.head_size = a.value_size, v.clip = k.clip;
    q.x = heads.q + row * heads.q_stride, q.stride = heads.q_stride;
    q.out = queries + row * query_stride, q.out_stride = query_stride;
    k.x = heads.k + row * heads.k_stride, k.stride = heads.k_stride;
    v.x = heads.v + row * heads.v_stride, v.stride = heads.v_stride;
    k.out = cached ? part.keys : keys + row * key_width, k.out_stride = key_width;
    v.out = cached ? part.values : values + row * value_width, v.out_stride = value_width;
    k.out_by_position = v.out_by_position = cached;
    q.m = k.m = v.m = part.count;
    cuda::prepare_heads(prepared, stream_.get());
    cuda::DeviceAttention in;
    in.queries = part.count, in.keys = part.begin + part.count;
    in.heads = a.heads, in.kv_heads = a.kv_heads, in.head_size = a.head_size, in.value_size = a.value_size;
    in.q = q.out, in.stride = query_stride;
    in.k = k.out, in.v = v.out;
    in.sinks = w.sinks;
    in.scale = static_cast<float>(a.scale);
    in.window = state_.shape.windows[at(layer)];
    cuda::attend(in, mixed + row * mixed_width, stream_.get());
    row += part.count;
  }
  if (a.has_gate) {
    cuda::gate_heads({m, a.heads, a.head_size, heads.q + a.head_size, heads.q_stride, 2 * a.head_size, mixed},
                     stream_.get());
  }
  see(run, groups.output_group, mixed, m, mixed_width);
  if (run.last == LayerStage::kAttentionOutput) return;
  products_.set_rows(mixed, m, mixed_width, stream_.get());
  products_.multiply(w.o, rows.out, h, true, stream_.get());
}

}  // namespace twofour
