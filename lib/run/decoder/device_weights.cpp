#include "lib/run/decoder/device_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>

#include "formats/atom.h"
#include "formats/e8m0.h"
#include "formats/error.h"
#include "formats/module_names.h"
#include "kernels/device/device.h"
#include "kernels/numbers/casts.h"
#include "lib/base/threads/interrupt.h"
#include "lib/recipe/artifact/layout_names.h"

namespace twofour {
namespace {

constexpr size_t kStaging = size_t{16} << 20;
/// Bytes of the device's free memory that are reserved for activations, keys and values, and libraries.
constexpr uint64_t kRoom = uint64_t{3} << 30;
constexpr uint64_t kAlignment = 256;

/// The form that a matrix has on the device.
struct StoredAs {
  cuda::MatrixFormat format = cuda::MatrixFormat::f32;
  int bits = 32;
  int64_t group = 0;    ///< of FP4
  uint8_t last = 0xFF;  ///< largest FP4 scale that is a number and not negative
};

/// The form of a stored matrix on the device. It is F32 if the device cannot read the format, or if the
/// scales do not match the rows.
StoredAs stored_as(const ModelWeights::Stored& from) {
  const Linear& m = from.module;
  const auto tensors = from.checkpoint.tensors();
  if (!m.format->coded) {
    const DType type = tensors[m.weight].dtype;
    if (type == DType::kBF16) return {cuda::MatrixFormat::bf16, 16};
    if (type == DType::kF16) return {cuda::MatrixFormat::f16, 16};
    return {};
  }
  if (m.format->pairs) {
    const bool nvfp4 = m.format->global_scale;
    const int64_t group = m.format->group;
    if (m.format == WeightFormat::kNvfp4Bs32 || m.k % group != 0 || m.scale_rows != 1 ||
        m.scale_cols != group ||
        tensors[*m.scale].bytes() != static_cast<uint64_t>(m.e * m.n * (m.k / group)))
      return {};
    return {nvfp4 ? cuda::MatrixFormat::nvfp4 : cuda::MatrixFormat::mxfp4, 4, group,
            static_cast<uint8_t>(nvfp4 ? 0x7E : 0xFE)};
  }
  const bool follows = from.place.step == 1 && from.place.first % m.scale_rows == 0;
  if (!m.format->tiles || m.format->number != nullptr || m.k_outer || !m.scale || !follows) return {};
  return {cuda::MatrixFormat::fp8, 8};
}

/// Scales of FP8, as float32.
std::vector<float> read_fp8_scales(const ModelWeights::Stored& from) {
  const Linear& m = from.module;
  const TensorInfo& t = from.checkpoint.tensors()[*m.scale];
  const auto size = static_cast<uint64_t>(dtype_bits(t.dtype) / 8);
  const int64_t columns = ceil_div(m.k, m.scale_cols), rows = ceil_div(from.place.count, m.scale_rows);
  const bool shared = t.bytes() == size;  // all experts share one value
  const int64_t first =
      shared ? 0 : from.place.e * ceil_div(m.n, m.scale_rows) + from.place.first / m.scale_rows;
  std::vector<uint8_t> bytes(static_cast<size_t>(rows * columns) * size);
  from.checkpoint.read(*m.scale, static_cast<uint64_t>(first * columns) * size, bytes);
  std::vector<float> scales(static_cast<size_t>(rows * columns));
  if (size == 1) {
    for (size_t i = 0; i < scales.size(); ++i) scales[i] = e8m0_to_float(bytes[i]);
  } else {
    widen(t.dtype, bytes.data(), scales);
  }
  return scales;
}

float global_scale_of(const ModelWeights::Stored& from) {
  if (!from.module.format->global_scale) return 1;
  return read_multiplier(from.checkpoint, from.module, from.place.e);
}

}  // namespace

/// Places weights one after the other in one allocation of device memory, or only counts their bytes.
class DeviceWeights::Placer {
 public:
  explicit Placer(const ModelWeights& weights) : weights_(weights) {}
  Placer(const ModelWeights& weights, cuda::DeviceMemory& memory)
      : weights_(weights), base_(memory.as<uint8_t>()), upload_(std::in_place, kStaging) {}

  /// Bytes in the allocation. The next functions have the bytes of weights outside of it, and of experts.
  uint64_t bytes() const { return at_; }
  uint64_t elsewhere() const { return elsewhere_; }
  uint64_t of_experts() const { return of_experts_; }
  void add_elsewhere(uint64_t bytes) { elsewhere_ += bytes; }
  /// Mark the beginning and the end of placing experts.
  void begin_experts() { of_experts_ -= bytes() + elsewhere(); }
  void end_experts() { of_experts_ += bytes() + elsewhere(); }
  bool places() const { return base_ != nullptr; }
  void finish() {
    if (upload_) upload_->finish();
  }

  cuda::DeviceMatrix matrix(const ModelMatrix& w) {
    if (!w) return {};
    const ModelWeights::Stored from = weights_.stored(w);
    const StoredAs as = stored_as(from);
    cuda::DeviceMatrix to;
    to.format = as.format;
    to.n = w.n, to.k = w.k;
    const auto row = static_cast<uint64_t>(w.k * as.bits / 8), rows = static_cast<uint64_t>(w.n);
    WeightReader reader(from.checkpoint);
    if (as.format == cuda::MatrixFormat::f32) {
      to.weights = place(rows * row, by_rows(row, [&](int64_t n0, int64_t n1, std::vector<uint8_t>& bytes) {
                           std::vector<float> values(static_cast<size_t>((n1 - n0) * w.k));
                           weights_.read_rows(w, n0, n1, values);
                           copy_bytes(values, bytes);
                         }));
    } else {
      to.weights =
          place(rows * row, by_rows(row, [&](int64_t n0, int64_t n1, std::vector<uint8_t>& bytes) {
                  take_rows(read(reader, from, n0, n1).weights, from.place.step, n1 - n0, row, bytes);
                  if (as.format == cuda::MatrixFormat::fp8) refuse_nan(w, n0, n1, bytes);
                }));
      place_scales(w, from, as, reader, to);
    }
    if (w.has_bias) to.bias = values(base_ != nullptr ? weights_.read_bias(w) : floats(w.n));
    return to;
  }

  const float* vector(const ModelVector& v) {
    if (!v) return nullptr;
    return values(base_ != nullptr ? weights_.read(v) : floats(v.count));
  }

  template <class T>
  const T* values(const std::vector<T>& from) {
    return reinterpret_cast<const T*>(
        place(from.size() * sizeof(T), [&](size_t begin, std::span<uint8_t> bytes) {
          std::memcpy(bytes.data(), reinterpret_cast<const uint8_t*>(from.data()) + begin, bytes.size());
        }));
  }

 private:
  using Fill = std::function<void(size_t, std::span<uint8_t>)>;

  static std::vector<float> floats(int64_t count) { return std::vector<float>(static_cast<size_t>(count)); }
  static void copy_bytes(const std::vector<float>& from, std::vector<uint8_t>& to) {
    to.resize(from.size() * sizeof(float));
    std::memcpy(to.data(), from.data(), to.size());
  }

  /// The stored bytes of rows [n0, n1), and of rows that are stored between them.
  static StoredRows read(WeightReader& reader, const ModelWeights::Stored& from, int64_t n0, int64_t n1) {
    const StoredMatrix& p = from.place;
    return reader.read_stored(from.module, p.e, p.first + n0 * p.step, p.first + (n1 - 1) * p.step + 1);
  }
  static void take_rows(std::span<const uint8_t> bytes, int64_t step, int64_t rows, uint64_t row,
                        std::vector<uint8_t>& to) {
    to.resize(static_cast<size_t>(rows) * row);
    for (size_t i = 0; i < static_cast<size_t>(rows); ++i)
      std::memcpy(to.data() + i * row, bytes.data() + i * static_cast<size_t>(step) * row, row);
  }
  /// Throws Error if there is a NaN. Reading the weights as numbers finds its place.
  void refuse_nan(const ModelMatrix& w, int64_t n0, int64_t n1, const std::vector<uint8_t>& bytes) const {
    if (std::none_of(bytes.begin(), bytes.end(), [](uint8_t b) { return (b & 0x7F) == 0x7F; })) return;
    refuse_numbers(w, n0, n1);
  }
  void refuse_numbers(const ModelMatrix& w, int64_t n0, int64_t n1) const {
    std::vector<float> values(static_cast<size_t>((n1 - n0) * w.k));
    weights_.read_rows(w, n0, n1, values);
  }

  /// Fills a range of bytes of a matrix by whole rows. `read(n0, n1, bytes)` provides the rows.
  template <class Read>
  static Fill by_rows(uint64_t row, Read read) {
    return [row, read](size_t begin, std::span<uint8_t> to) {
      check_interrupt();
      // reads at most as many bytes at a time as fit into caches
      const uint64_t most = std::max<uint64_t>(1, (uint64_t{1} << 20) / row);
      std::vector<uint8_t> bytes;
      for (uint64_t at = begin, end = begin + to.size(); at < end;) {
        const uint64_t n0 = at / row, n1 = std::min(n0 + most, (end + row - 1) / row);
        read(static_cast<int64_t>(n0), static_cast<int64_t>(n1), bytes);
        const uint64_t count = std::min(n1 * row, end) - at;
        std::memcpy(to.data() + (at - begin), bytes.data() + (at - n0 * row), count);
        at += count;
      }
    };
  }

  void place_scales(const ModelMatrix& w, const ModelWeights::Stored& from, const StoredAs& as,
                    WeightReader& reader, cuda::DeviceMatrix& to) {
    if (as.group > 0) {
      const auto row = static_cast<uint64_t>(w.k / as.group);
      to.scales = place(static_cast<uint64_t>(w.n) * row,
                        by_rows(row, [&](int64_t n0, int64_t n1, std::vector<uint8_t>& bytes) {
                          take_rows(read(reader, from, n0, n1).scales, from.place.step, n1 - n0, row, bytes);
                          if (std::any_of(bytes.begin(), bytes.end(), [&](uint8_t b) { return b > as.last; }))
                            refuse_numbers(w, n0, n1);
                        }));
      if (base_ != nullptr) to.global_scale = global_scale_of(from);
    } else if (as.format == cuda::MatrixFormat::fp8) {
      to.scale_rows = from.module.scale_rows, to.scale_cols = from.module.scale_cols;
      const std::vector<float> scales = read_fp8_scales(from);
      if (!std::all_of(scales.begin(), scales.end(), [](float s) { return std::isfinite(s) && s >= 0; }))
        refuse_numbers(w, 0, w.n);
      to.scales = values(scales);
    }
  }

  const uint8_t* place(uint64_t bytes, const Fill& fill) {
    uint8_t* to = base_ + at_;
    if (base_ != nullptr && bytes > 0) upload_->copy(to, static_cast<size_t>(bytes), fill);
    at_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return to;
  }

  const ModelWeights& weights_;
  uint8_t* base_ = nullptr;
  uint64_t at_ = 0, elsewhere_ = 0, of_experts_ = 0;
  std::optional<cuda::DeviceUpload> upload_;
};

void DeviceWeights::place_ends(Placer& placer) {
  ends_.embedding = placer.matrix(state_.embedding);
  ends_.head = state_.shape.is_tied ? ends_.embedding : placer.matrix(state_.head);
  ends_.norm = placer.vector(state_.norm);
  ends_.frequencies = placer.values(state_.shape.attention.frequencies);
}

/// The index of the artifact's layer that can run in its stored form. Nothing if no layer has these sizes, or
/// if the model computes something else between the matrices.
std::optional<size_t> DeviceWeights::find_block(const std::string& name, int64_t experts,
                                                int64_t width) const {
  const GateShape& gate = state_.shape.gate;
  if (!artifact_ || is_changed_ || gate.slope != 1 || gate.offset != 0) return std::nullopt;
  const auto layers = artifact_->layers();
  for (size_t i = 0; i < layers.size(); ++i) {
    const LayerInfo& l = layers[i];
    if (l.name == name && l.gated && l.e == experts && l.h == state_.shape.hidden && l.i == width) return i;
  }
  return std::nullopt;
}

std::shared_ptr<const RuntimeLayer> DeviceWeights::place_block(Placer& placer, size_t index) const {
  LayerOptions options;
  options.limit = state_.shape.gate.limit;
  placer.add_elsewhere(artifact_->device_bytes(index, options));
  if (!placer.places()) return nullptr;
  return std::make_shared<const RuntimeLayer>(artifact_->load(index, Device::cuda, options));
}

void DeviceWeights::place_mlp(Placer& placer, const MlpWeights& w, DeviceMlp& to) const {
  if (!w.gate) return;
  const std::string name(module_of(w.gate.name));
  if (const auto block = find_block(name, 1, w.gate.n)) {
    to.block = place_block(placer, *block);
    return;
  }
  to.gate = placer.matrix(w.gate), to.up = placer.matrix(w.up), to.down = placer.matrix(w.down);
}

void DeviceWeights::place_experts(Placer& placer, int64_t layer, DeviceExperts& to) const {
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
  const auto format_of = [](const std::vector<cuda::DeviceMatrix>& all) {
    const bool one = std::all_of(all.begin(), all.end(),
                                 [&](const cuda::DeviceMatrix& m) { return m.format == all.front().format; });
    return one ? std::optional(all.front().format) : std::nullopt;
  };
  to.gate_up = {placer.values(gate_up), 2, count, 2 * f.experts.front().gate.n, f.experts.front().gate.k,
                format_of(gate_up)};
  to.down = {placer.values(down), 1, count, f.experts.front().down.n, f.experts.front().down.k,
             format_of(down)};
}

void DeviceWeights::place_layer(Placer& placer, int64_t layer, DeviceLayer& to) const {
  const AttentionWeights& a = state_.layers[at(layer)].attention;
  const FeedForwardWeights& f = state_.layers[at(layer)].feed_forward;
  to.q = placer.matrix(a.q), to.k = placer.matrix(a.k), to.v = placer.matrix(a.v);
  to.q_a = placer.matrix(a.q_a), to.q_b = placer.matrix(a.q_b);
  to.kv_a = placer.matrix(a.kv_a), to.kv_b = placer.matrix(a.kv_b);
  to.o = placer.matrix(a.o);
  to.attention_norm = placer.vector(a.norm);
  to.q_norm = placer.vector(a.q_norm), to.k_norm = placer.vector(a.k_norm);
  to.q_a_norm = placer.vector(a.q_a_norm), to.kv_a_norm = placer.vector(a.kv_a_norm);
  to.sinks = placer.vector(a.sinks);
  to.feed_forward_norm = placer.vector(f.norm);
  to.router = placer.matrix(f.router);
  to.correction = placer.vector(f.correction);
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
  Placer ends(state.weights);
  place_ends(ends);
  token_bytes_ = state.shape.is_tied ? ends.bytes() : ends.bytes() / 2;
  std::vector<uint64_t> layers;
  uint64_t largest = 0;
  for (int64_t i = 0; i < state.shape.layers; ++i) {
    Placer placer(state.weights);
    DeviceLayer none;
    place_layer(placer, i, none);
    layers.push_back(placer.bytes() + placer.elsewhere());
    layer_bytes_ += layers.back();
    const auto experts = static_cast<uint64_t>(std::max<int64_t>(1, state.shape.experts));
    const uint64_t unread =
        placer.of_experts() / experts * (experts - static_cast<uint64_t>(state.shape.top_k));
    token_bytes_ += layers.back() - unread;
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
  Placer placer(state.weights, ends_memory_);
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
  Placer sizes(state_.weights);
  DeviceLayer none;
  place_layer(sizes, layer, none);
  if (p.memory.bytes() < sizes.bytes()) {
    p.memory = {};
    p.memory = cuda::DeviceMemory(sizes.bytes());
  }
  Placer placer(state_.weights, p.memory);
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
