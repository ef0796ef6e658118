#include "lib/run/decoder/device_sequence.h"

#include <algorithm>

#include "kernels/device/check.h"

namespace twofour {

DeviceSequence::DeviceSequence(const DecoderState& state, DeviceRun& run) : state_(state), run_(run) {
  int64_t linear = 0;
  for (const Mixer mixer : state.shape.mixers)
    place_.push_back((mixer == Mixer::kDelta ? linear : attention_layers_)++);
  const DeltaShape& d = state.shape.delta;
  if (linear > 0)
    states_ = cuda::DeviceMemory(at(linear * (d.kernel * d.channels() + d.recurrent())) * sizeof(float));
}

DevicePart DeviceSequence::caches_of(int64_t layer) const {
  const AttentionShape& a = state_.shape.attention;
  const DeltaShape& d = state_.shape.delta;
  const int64_t window = d.kernel * d.channels();
  DevicePart part;
  if (state_.shape.mixers[at(layer)] == Mixer::kDelta) {
    part.window = states_.as<float>() + place_[at(layer)] * (window + d.recurrent());
    part.recurrent = part.window + window;
  } else {
    part.keys =
        cache_.as<float>() + place_[at(layer)] * capacity_ * a.kv_heads * (a.head_size + a.value_size);
    part.values = part.keys + capacity_ * a.kv_heads * a.head_size;
  }
  return part;
}

void DeviceSequence::reserve(int64_t tokens) {
  if (tokens <= capacity_) return;
  const AttentionShape& a = state_.shape.attention;
  const int64_t before = capacity_, key_width = a.kv_heads * a.head_size,
                value_width = a.kv_heads * a.value_size;
  const int64_t more = std::max(tokens, std::min(2 * capacity_, state_.shape.positions));
  cuda::DeviceMemory old = std::move(cache_);
  const cuda::DeviceMemory old_history = std::move(history_);
  cache_ = cuda::DeviceMemory(at(attention_layers_ * more * (key_width + value_width)) * sizeof(float));
  history_ = cuda::DeviceMemory(static_cast<size_t>(more) * sizeof(cuda::LogitFigures));
  capacity_ = more;
  graph_.reset();
  for (int64_t i = 0; i < attention_layers_ && before > 0; ++i) {
    const float* from = old.as<float>() + i * before * (key_width + value_width);
    float* to = cache_.as<float>() + i * more * (key_width + value_width);
    cuda::move_device_bytes(from, to, at(before * key_width) * sizeof(float), run_.stream().get());
    cuda::move_device_bytes(from + before * key_width, to + more * key_width,
                            at(before * value_width) * sizeof(float), run_.stream().get());
  }
  if (before > 0)
    cuda::move_device_bytes(old_history.as(), history_.as(), old_history.bytes(), run_.stream().get());
  run_.stream().synchronize();
}

std::vector<float> DeviceSequence::append(std::span<const int32_t> tokens, int64_t begin, bool all) {
  const ModelShape& shape = state_.shape;
  const auto count = static_cast<int64_t>(tokens.size());
  reserve(begin + count);
  std::vector<float> logits;
  if (count == 1) {
    upload_state(tokens.front(), begin);
    replay();
    logits.resize(at(shape.vocabulary));
    cuda::copy_to_host(b_.logits.as(), logits.data(), logits.size() * sizeof(float), run_.stream());
    run_.check_routers();
    return logits;
  }
  float* hidden = hidden_.of<float>(count * shape.hidden);
  int32_t* device_tokens = tokens_.of<int32_t>(count);
  cuda::copy_to_device(tokens.data(), device_tokens, tokens.size_bytes(), run_.stream());
  cuda::take_rows(run_.weights().ends().embedding, device_tokens, count, hidden, run_.stream().get());
  for (int64_t layer = 0; layer < shape.layers; ++layer) {
    DevicePart part = caches_of(layer);
    part.count = count, part.begin = begin;
    run_.run_layer(layer, {&part, 1}, hidden, count);
  }
  const int64_t rows = all ? count : 1;
  float* out = logits_.of<float>(rows * shape.vocabulary);
  run_.run_head(hidden + (count - rows) * shape.hidden, rows, out);
  upload_state(0, begin + count - 1);
  cuda::choose_token(out + (rows - 1) * shape.vocabulary, shape.vocabulary, b_.choice.as(),
                     b_.state.as<cuda::TokenState>(), history_.as<cuda::LogitFigures>(), run_.stream().get());
  logits.resize(at(rows * shape.vocabulary));
  cuda::copy_to_host(out, logits.data(), logits.size() * sizeof(float), run_.stream());
  run_.check_routers();
  return logits;
}

void DeviceSequence::upload_state(int32_t token, int64_t position) {
  make_buffers();
  const cuda::TokenState state{token, static_cast<int32_t>(position)};
  cuda::copy_to_device(&state, b_.state.as(), sizeof state, run_.stream());
}

std::vector<cuda::LogitFigures> DeviceSequence::extend(int64_t begin, int64_t count) {
  reserve(begin + count);
  for (int64_t i = 0; i < count; ++i) replay();
  std::vector<cuda::LogitFigures> made(at(count + 1));
  cuda::copy_to_host(history_.as<cuda::LogitFigures>() + begin - 1, made.data(),
                     made.size() * sizeof(cuda::LogitFigures), run_.stream());
  run_.check_routers();
  return made;
}

void DeviceSequence::replay() {
  // The first run loads kernels, which a graph cannot do. Kernels of a token read results of the previous
  // token before the kernels in between end. So the host waits when no graph is used.
  if (!run_.weights().is_resident() || !is_warm_) {
    step();
    run_.stream().synchronize();
    is_warm_ = true;
    return;
  }
  if (graph_ == nullptr) graph_ = std::make_unique<cuda::DeviceGraph>(run_.stream(), [&] { step(); });
  graph_->replay(run_.stream());
}

void DeviceSequence::make_buffers() {
  if (b_.state.bytes() > 0) return;
  const ModelShape& s = state_.shape;
  const AttentionShape& a = s.attention;
  const auto floats = [](int64_t count) { return cuda::DeviceMemory(at(std::max<int64_t>(count, 4)) * 4); };
  const int64_t queries = a.heads * a.head_size, keys = a.kv_heads * a.head_size,
                values = a.kv_heads * a.value_size;
  b_.hidden = floats(s.hidden), b_.other_hidden = floats(s.hidden);
  b_.routed = cuda::DeviceMemory(std::vector<uint64_t>(at(std::max<int64_t>(s.experts, 1)), 0));
  b_.normed = floats(s.hidden), b_.added = floats(s.hidden);
  const DeltaShape& d = s.delta;
  b_.heads = floats(std::max((a.has_gate ? 2 : 1) * queries + keys + values,
                             d.channels() + d.values() + 2 * d.value_heads));
  b_.delta_mixed = floats(d.channels()), b_.delta_gates = floats(2 * d.value_heads);
  b_.low = floats(a.kv_rank + a.head_size), b_.latent = floats(std::max(a.q_rank, a.kv_rank));
  b_.both = floats(a.heads * (a.head_size + a.value_size));
  b_.keys = floats(keys), b_.values = floats(values);
  b_.mixed = floats(std::max(a.heads * a.value_size, d.values()));
  b_.gates = floats(2 * std::max({s.width, s.shared_width, s.top_k * s.expert_width}));
  b_.out = floats(std::max<int64_t>(1, s.top_k) * s.hidden);
  b_.gate_logit = floats(1), b_.ids = floats(s.top_k), b_.weights = floats(s.top_k);
  b_.one_id = cuda::DeviceMemory(std::vector<int32_t>(4, 0));
  b_.one_weight = cuda::DeviceMemory(std::vector<float>(4, 1.0f));
  b_.logits = floats(s.vocabulary);
  b_.choice = cuda::DeviceMemory(cuda::choose_token_workspace());
  b_.choice.fill(0);
  cuda::DeviceAttention in;
  in.heads = a.heads, in.kv_heads = a.kv_heads, in.head_size = a.head_size, in.value_size = a.value_size;
  b_.attention = cuda::DeviceMemory(cuda::attend_one_workspace(in));
  b_.attention.fill(0);
  size_t workspace = 256;
  for (int64_t layer = 0; layer < s.layers; ++layer) {
    const DeviceLayer& w = run_.weights().layer(layer);
    if (w.mlp.block) workspace = std::max(workspace, w.mlp.block->workspace_bytes(1, 1));
    if (w.experts.block) workspace = std::max(workspace, w.experts.block->workspace_bytes(1, s.top_k));
  }
  b_.workspace = cuda::DeviceMemory(workspace);
  b_.state = cuda::DeviceMemory(sizeof(cuda::TokenState));
}

}  // namespace twofour
