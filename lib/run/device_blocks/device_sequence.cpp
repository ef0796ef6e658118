#include "lib/run/device_blocks/device_sequence.h"

#include <algorithm>

#include "kernels/device/check.h"

namespace twofour {

DeviceSequence::DeviceSequence(const DecoderState& state, DeviceRun& run) : state_(state), run_(run) {
  const AttentionShape& a = state.shape.attention;
  const CompressedShape& c = state.shape.compressed;
  int64_t floats = 0;
  for (int64_t layer = 0; layer < state.shape.layers; ++layer) {
    floats += state_floats(layer);
    switch (state.shape.mixers[at(layer)]) {
      case Mixer::kAttention:
        caches_.push_back({layer, 1, a.kv_heads * a.head_size});
        caches_.push_back({layer, 1, a.kv_heads * a.value_size});
        break;
      case Mixer::kDelta:
        break;
      case Mixer::kCompressed: {
        const int64_t ratio = c.ratios[at(layer)];
        if (ratio > 0) caches_.push_back({layer, ratio, a.head_size});
        if (c.overlaps(ratio)) caches_.push_back({layer, ratio, c.index_size});
        break;
      }
      case Mixer::kStateSpace:
      case Mixer::kNone:
        break;  // not on CUDA: ModelShape::runs_on_cuda()
    }
  }
  if (floats > 0) states_ = cuda::DeviceMemory(at(floats) * sizeof(float));
}

int64_t DeviceSequence::state_floats(int64_t layer) const {
  const ModelShape& s = state_.shape;
  switch (s.mixers[at(layer)]) {
    case Mixer::kAttention:
      return 0;
    case Mixer::kDelta:
      return s.delta.kernel * s.delta.channels() + s.delta.recurrent();
    case Mixer::kCompressed: {
      const CompressedRow row(s, layer);
      return s.compressed.window * s.attention.head_size + row.kept * row.compressor;
    }
    case Mixer::kStateSpace:
    case Mixer::kNone:
      break;
  }
  return 0;
}

DevicePart DeviceSequence::caches_of(int64_t layer) const {
  const ModelShape& s = state_.shape;
  std::vector<float*> arrays;
  float* next = cache_.as<float>();
  for (const Cache& cache : caches_) {
    if (cache.layer == layer) arrays.push_back(next);
    next += cache.floats(capacity_);
  }
  float* state = states_.as<float>();
  for (int64_t before = 0; before < layer; ++before) state += state_floats(before);
  DevicePart part;
  switch (s.mixers[at(layer)]) {
    case Mixer::kAttention:
      part.keys = arrays[0], part.values = arrays[1];
      break;
    case Mixer::kDelta:
      part.window = state;
      part.recurrent = state + s.delta.kernel * s.delta.channels();
      break;
    case Mixer::kCompressed:
      part.window = state;
      part.compressor = state + s.compressed.window * s.attention.head_size;
      if (!arrays.empty()) part.entries = arrays[0];
      if (arrays.size() > 1) part.index_keys = arrays[1];
      break;
    case Mixer::kStateSpace:
    case Mixer::kNone:
      break;
  }
  return part;
}

void DeviceSequence::reserve(int64_t tokens) {
  if (tokens <= capacity_) return;
  const int64_t before = capacity_;
  const int64_t more = std::max(tokens, std::min(2 * capacity_, state_.shape.positions));
  int64_t floats = 0;
  for (const Cache& cache : caches_) floats += cache.floats(more);
  cuda::DeviceMemory old = std::move(cache_);
  const cuda::DeviceMemory old_history = std::move(history_);
  cache_ = cuda::DeviceMemory(at(std::max<int64_t>(floats, 1)) * sizeof(float));
  history_ = cuda::DeviceMemory(static_cast<size_t>(more) * sizeof(cuda::LogitFigures));
  capacity_ = more;
  graph_.reset();
  is_warm_ = false;  // more entries may need kernels that did not run before
  const float* from = old.as<float>();
  float* to = cache_.as<float>();
  for (const Cache& cache : caches_) {
    const int64_t kept = cache.floats(before);
    if (kept > 0) cuda::move_device_bytes(from, to, at(kept) * sizeof(float), run_.stream().get());
    from += kept, to += cache.floats(more);
    // A graph cannot allocate memory.
    if (state_.shape.mixers[at(cache.layer)] == Mixer::kCompressed)
      scores_.of<float>(run_.scored_entries(cache.layer, more));
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
  float* hidden = hidden_.of<float>(count * shape.residual());
  int32_t* device_tokens = tokens_.of<int32_t>(count);
  cuda::copy_to_device(tokens.data(), device_tokens, tokens.size_bytes(), run_.stream());
  run_.embed(device_tokens, count, hidden);
  for (int64_t layer = 0; layer < shape.layers; ++layer) {
    DevicePart part = caches_of(layer);
    part.count = count, part.begin = begin;
    run_.run_layer(layer, {&part, 1}, device_tokens, hidden, count);
  }
  const int64_t rows = all ? count : 1;
  float* out = logits_.of<float>(rows * shape.vocabulary);
  run_.run_head(hidden + (count - rows) * shape.residual(), rows, out);
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
  b_.hidden = floats(s.residual()), b_.other_hidden = floats(s.hidden);
  b_.routed = cuda::DeviceMemory(std::vector<uint64_t>(at(std::max<int64_t>(s.experts, 1)), 0));
  b_.normed = floats(s.hidden), b_.added = floats(s.hidden);
  const DeltaShape& d = s.delta;
  const CompressedShape& c = s.compressed;
  int64_t projected =
      std::max((a.has_gate ? 2 : 1) * queries + keys + values, d.channels() + d.values() + 2 * d.value_heads);
  for (int64_t layer = 0; layer < static_cast<int64_t>(c.ratios.size()); ++layer)
    projected = std::max(projected, CompressedRow(s, layer).count);
  b_.heads = floats(projected);
  b_.queries = floats(c.ratios.empty() ? 0 : queries + c.index_heads * c.index_size);
  b_.chosen = cuda::DeviceMemory(at(std::max<int64_t>(c.chosen, 1)) * sizeof(int32_t));
  const cuda::StreamMixer mixer = run_.stream_mixer({});
  b_.read = floats(s.hidden), b_.half_out = floats(s.hidden), b_.mix = floats(mixer.mix());
  b_.sums = cuda::DeviceMemory(cuda::mix_streams_workspace(mixer, 1));
  b_.delta_mixed = floats(d.channels()), b_.delta_gates = floats(2 * d.value_heads);
  b_.low = floats(std::max(a.kv_rank + a.head_size, c.groups * c.rank)),
  b_.latent = floats(std::max(a.q_rank, a.kv_rank));
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
  if (std::count(s.mixers.begin(), s.mixers.end(), Mixer::kAttention) > 0) {
    b_.attention = cuda::DeviceMemory(cuda::attend_one_workspace(in));
    b_.attention.fill(0);
  }
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
