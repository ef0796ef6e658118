#include "lib/run/device_blocks/device_weights.h"

#include <fmt/format.h>

#include <algorithm>

#include "formats/error.h"
#include "formats/module_names.h"
#include "kernels/device/device.h"
#include "lib/recipe/artifact/layout_names.h"

namespace twofour {
namespace {

/// Bytes of the device's free memory that are reserved for activations, keys and values, and libraries.
constexpr uint64_t kRoom = uint64_t{3} << 30;

/// The format of all matrices; empty if they have several.
std::optional<cuda::MatrixFormat> format_of(const std::vector<cuda::DeviceMatrix>& all) {
  for (const cuda::DeviceMatrix& m : all) {
    if (m.format != all.front().format) return std::nullopt;
  }
  return all.front().format;
}
/// The columns with a scale in FP8; 0 if they differ.
int64_t scale_cols_of(const std::vector<cuda::DeviceMatrix>& all) {
  for (const cuda::DeviceMatrix& m : all) {
    if (m.scale_cols != all.front().scale_cols) return 0;
  }
  return all.front().scale_cols;
}

DeviceStreams place_streams(DevicePlacer& placer, const StreamWeights& w) {
  return {placer.vector(w.weight), placer.vector(w.base), placer.vector(w.scale)};
}

}  // namespace

void DeviceWeights::place_ends(DevicePlacer& placer) {
  ends_.embedding = placer.matrix(state_.embedding);
  ends_.head = state_.shape.is_tied ? ends_.embedding : placer.matrix(state_.head);
  ends_.norm = placer.vector(state_.norm);
  ends_.embedding.global_scale *= static_cast<float>(state_.shape.embedding_scale);
  const AttentionShape& a = state_.shape.attention;
  ends_.frequencies = placer.values(a.frequencies);
  ends_.window_frequencies =
      a.window_frequencies.empty() ? ends_.frequencies : placer.values(a.window_frequencies);
  ends_.compressed_frequencies = placer.values(state_.shape.compressed.frequencies);
  ends_.streams = place_streams(placer, state_.head_streams);
}

/// The index of the artifact's layer that can run in its stored form. Nothing if no layer has these sizes, or
/// if the model computes something else between the matrices.
std::optional<size_t> DeviceWeights::find_block(const std::string& name, int64_t experts,
                                                int64_t width) const {
  const GateShape& gate = state_.shape.gate;
  if (!artifact_ || is_changed_ || gate.slope != 1 || gate.offset != 0 || gate.is_gelu) return std::nullopt;
  const auto layers = artifact_->layers();
  for (size_t i = 0; i < layers.size(); ++i) {
    const LayerInfo& l = layers[i];
    if (l.name == name && l.gated && l.e == experts && l.h == state_.shape.hidden && l.i == width) return i;
  }
  return std::nullopt;
}

std::shared_ptr<const RuntimeLayer> DeviceWeights::place_block(DevicePlacer& placer, size_t index) const {
  LayerOptions options;
  options.limit = state_.shape.gate.limit;
  placer.add_elsewhere(artifact_->device_bytes(index, options));
  if (!placer.places()) return nullptr;
  return std::make_shared<const RuntimeLayer>(artifact_->load(index, Device::cuda, options));
}

void DeviceWeights::place_mlp(DevicePlacer& placer, const MlpWeights& w, DeviceMlp& to) const {
  if (!w.gate) return;
  const std::string name(module_of(w.gate.name));
  if (const auto block = find_block(name, 1, w.gate.n)) {
    to.block = place_block(placer, *block);
    return;
  }
  to.gate = placer.matrix(w.gate), to.up = placer.matrix(w.up), to.down = placer.matrix(w.down);
}

void DeviceWeights::place_experts(DevicePlacer& placer, int64_t layer, DeviceExperts& to) const {
  const FeedForwardWeights& f = state_.layers[at(layer)].feed_forward;
  const auto count = static_cast<int64_t>(f.experts.size());
  if (count == 0) return;
  const std::string& block_name = state_.layers[at(layer)].groups[f.expert_group].block;
  if (const auto block = find_block(block_name, count, state_.shape.expert_width)) {
    to.block = place_block(placer, *block);
    return;
  }
  std::vector<cuda::DeviceMatrix> gate_up, down;
  for (const MlpWeights& e : f.experts) {
    to.each.push_back({placer.matrix(e.gate), placer.matrix(e.up), placer.matrix(e.down), nullptr});
    gate_up.push_back(to.each.back().gate);
    gate_up.push_back(to.each.back().up);
    down.push_back(to.each.back().down);
  }
  to.gate_up = {placer.values(gate_up),
                2,
                count,
                2 * f.experts.front().gate.n,
                f.experts.front().gate.k,
                format_of(gate_up),
                scale_cols_of(gate_up)};
  to.down = {
      placer.values(down), 1, count, f.experts.front().down.n, f.experts.front().down.k, format_of(down),
      scale_cols_of(down)};
}

void DeviceWeights::place_delta(DevicePlacer& placer, const DeltaWeights& w, DeviceDelta& to) const {
  if (!w.out) return;
  for (const ModelMatrix* m : {&w.qkvz, &w.ba, &w.qkv, &w.z, &w.b, &w.a}) {
    if (*m) to.in.push_back(placer.matrix(*m));
  }
  to.out = placer.matrix(w.out);
  to.convolution = placer.vector(w.convolution);
  to.a_log = placer.vector(w.a_log), to.dt_bias = placer.vector(w.dt_bias);
  to.norm = placer.vector(w.norm);
}

void DeviceWeights::place_compressed(DevicePlacer& placer, const LayerWeights& w,
                                     DeviceCompressed& to) const {
  const CompressedWeights& c = w.compressed;
  if (!c.kv) return;
  for (const ModelMatrix* m : {&w.attention.q_a, &c.kv, &c.entries.values, &c.entries.gates, &c.index.values,
                               &c.index.gates, &c.index_weights}) {
    if (*m) to.in.push_back(placer.matrix(*m));
  }
  const int64_t groups = state_.shape.compressed.groups, rank = state_.shape.compressed.rank;
  std::vector<int32_t> ids;
  for (int64_t g = 0; g < groups; ++g) {
    to.o_a.push_back(placer.matrix(c.o_a.rows(g * rank, (g + 1) * rank)));
    ids.push_back(static_cast<int32_t>(g));
  }
  to.groups = {placer.values(to.o_a), 1, groups, rank, c.o_a.k, format_of(to.o_a), scale_cols_of(to.o_a)};
  to.group_ids = placer.values(ids);
  to.index_q = placer.matrix(c.index_q);
  to.kv_norm = placer.vector(c.kv_norm);
  to.entries = {placer.vector(c.entries.bias), placer.vector(c.entries.norm)};
  to.index = {placer.vector(c.index.bias), placer.vector(c.index.norm)};
}

const int32_t* DeviceWeights::place_table(DevicePlacer& placer, size_t tensor) const {
  const int64_t each = state_.shape.top_k, count = state_.shape.vocabulary * each;
  std::vector<int32_t> experts(at(count));
  if (placer.places()) {
    const std::vector<int64_t> read = state_.weights.read_numbers(tensor, 0, count);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t e = read[at(i)];
      if (e < 0 || e >= state_.shape.experts) {
        throw Error(fmt::format("{}: token {}: expected experts 0 to {}, found {}",
                                state_.checkpoint.where(tensor), i / each, state_.shape.experts - 1, e));
      }
      experts[at(i)] = static_cast<int32_t>(e);
    }
  }
  return placer.values(experts);
}

void DeviceWeights::place_layer(DevicePlacer& placer, int64_t layer, DeviceLayer& to) const {
  const AttentionWeights& a = state_.layers[at(layer)].attention;
  const FeedForwardWeights& f = state_.layers[at(layer)].feed_forward;
  to.q = placer.matrix(a.q), to.k = placer.matrix(a.k), to.v = placer.matrix(a.v);
  const bool is_compressed = state_.shape.mixers[at(layer)] == Mixer::kCompressed;
  if (!is_compressed) to.q_a = placer.matrix(a.q_a);
  to.q_b = placer.matrix(a.q_b);
  to.kv_a = placer.matrix(a.kv_a), to.kv_b = placer.matrix(a.kv_b);
  to.o = placer.matrix(a.o);
  to.attention_norm = placer.vector(a.norm);
  to.q_norm = placer.vector(a.q_norm), to.k_norm = placer.vector(a.k_norm);
  to.q_a_norm = placer.vector(a.q_a_norm), to.kv_a_norm = placer.vector(a.kv_a_norm);
  to.sinks = placer.vector(a.sinks);
  to.norm_behind_attention = placer.vector(a.norm_behind);
  to.norm_behind_feed_forward = placer.vector(f.norm_behind);
  to.attention_streams = place_streams(placer, state_.layers[at(layer)].attention_streams);
  to.feed_forward_streams = place_streams(placer, state_.layers[at(layer)].feed_forward_streams);
  place_delta(placer, state_.layers[at(layer)].delta, to.delta);
  place_compressed(placer, state_.layers[at(layer)], to.compressed);
  to.feed_forward_norm = placer.vector(f.norm);
  to.router = placer.matrix(f.router);
  to.correction = placer.vector(f.correction);
  if (f.table) to.table = place_table(placer, *f.table);
  to.shared_gate = placer.matrix(f.shared_gate);
  place_mlp(placer, f.mlp, to.mlp);
  placer.begin_experts();
  place_experts(placer, layer, to.experts);
  placer.end_experts();
}

DeviceWeights::DeviceWeights(const DecoderState& state, uint64_t memory) : state_(state) {
  if (state.checkpoint.is_view() && state.checkpoint.is_directory()) {
    const Checkpoint stored = Checkpoint::open(state.checkpoint.path());
    if (holds_layout(stored)) artifact_.emplace(RuntimeArtifact::open(stored.path()));
    state.checkpoint.check_same_files();
  }
  DevicePlacer ends(state.weights);
  place_ends(ends);
  token_bytes_ = state.shape.is_tied ? ends.bytes() : ends.bytes() / 2;
  std::vector<uint64_t> layers;
  uint64_t largest = 0;
  for (int64_t i = 0; i < state.shape.layers; ++i) {
    DevicePlacer placer(state.weights);
    DeviceLayer none;
    place_layer(placer, i, none);
    layers.push_back(placer.bytes() + placer.elsewhere());
    layer_bytes_ += layers.back();
    const auto experts = static_cast<uint64_t>(std::max<int64_t>(1, state.shape.experts));
    const uint64_t unread =
        placer.of_experts() / experts * (experts - static_cast<uint64_t>(state.shape.top_k));
    const auto table = static_cast<uint64_t>(state.shape.vocabulary * state.shape.top_k) * sizeof(int32_t);
    // Short texts do not read the queries of an index.
    DevicePlacer index(state.weights);
    index.matrix(state.layers[at(i)].compressed.index_q);
    token_bytes_ +=
        layers.back() - unread - index.bytes() - (state.layers[at(i)].feed_forward.table ? table : 0);
    largest = std::max(largest, layers.back());
  }
  if (memory == 0) {
    const uint64_t free = cuda::available_device_bytes();
    memory = free > 2 * kRoom ? free - kRoom : free / 2;
  }
  is_resident_ = ends.bytes() + layer_bytes_ <= memory;
  const uint64_t room = memory > ends.bytes() ? memory - ends.bytes() : 0;
  if (!is_resident_ && largest > room) {
    throw Error(fmt::format(
        "{}: expected {} bytes of device memory for the embedding and one layer, found {}{}",
        state.checkpoint.path().string(), ends.bytes() + largest, memory, cuda::kDeviceMemoryAdvice));
  }
  const size_t places = is_resident_ ? layers.size() : 2 * largest <= room ? 2 : 1;
  for (size_t i = 0; i < places; ++i) placed_.push_back(std::make_unique<Placed>());
  ends_memory_ = cuda::DeviceMemory(ends.bytes());
  DevicePlacer placer(state.weights, ends_memory_);
  place_ends(placer);
  placer.finish();
}

void DeviceWeights::leave(int64_t layer, const cuda::DeviceStream& stream) {
  place_of(layer).used.record(stream);
}

const DeviceLayer& DeviceWeights::layer(int64_t layer) {
  Placed& p = place_of(layer);
  if (p.layer == layer) return p.weights;
  p.used.wait();
  p.layer = -1;
  p.weights = {};
  DevicePlacer sizes(state_.weights);
  DeviceLayer none;
  place_layer(sizes, layer, none);
  if (p.memory.bytes() < sizes.bytes()) {
    p.memory = {};
    p.memory = cuda::DeviceMemory(sizes.bytes());
  }
  DevicePlacer placer(state_.weights, p.memory);
  place_layer(placer, layer, p.weights);
  placer.finish();
  p.layer = layer;
  return p.weights;
}

void DeviceWeights::forget() {
  is_changed_ = true;
  for (const auto& p : placed_) p->layer = -1;
}

}  // namespace twofour
