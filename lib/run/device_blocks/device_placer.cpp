#include "lib/run/device_blocks/device_placer.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "formats/atom.h"
#include "formats/e8m0.h"
#include "kernels/numbers/casts.h"
#include "lib/base/threads/interrupt.h"

namespace twofour {
namespace {

constexpr size_t kStaging = size_t{16} << 20;
constexpr uint64_t kAlignment = 256;

/// The form that a matrix has on the device.
struct StoredAs {
  cuda::MatrixFormat format = cuda::MatrixFormat::f32;
  int bits = 32;
  int64_t group = 0;    ///< for FP4: weights that share a scale
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
    if (m.format->variant_of != nullptr || m.k % group != 0 || m.scale_rows != 1 || m.scale_cols != group ||
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

std::vector<float> floats(int64_t count) { return std::vector<float>(static_cast<size_t>(count)); }
void copy_bytes(const std::vector<float>& from, std::vector<uint8_t>& to) {
  to.resize(from.size() * sizeof(float));
  std::memcpy(to.data(), from.data(), to.size());
}

/// The stored bytes of rows [n0, n1), and of rows that are stored between them.
StoredRows rows_between(WeightReader& reader, const ModelWeights::Stored& from, int64_t n0, int64_t n1) {
  const StoredMatrix& p = from.place;
  return reader.read_stored(from.module, p.e, p.first + n0 * p.step, p.first + (n1 - 1) * p.step + 1);
}
void take_rows(std::span<const uint8_t> bytes, int64_t step, int64_t rows, uint64_t row,
               std::vector<uint8_t>& to) {
  to.resize(static_cast<size_t>(rows) * row);
  for (size_t i = 0; i < static_cast<size_t>(rows); ++i)
    std::memcpy(to.data() + i * row, bytes.data() + i * static_cast<size_t>(step) * row, row);
}

/// Fills a range of bytes of a matrix by whole rows. `read(n0, n1, bytes)` provides the rows.
template <class Read>
auto by_rows(uint64_t row, Read read) {
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

}  // namespace

DevicePlacer::DevicePlacer(const ModelWeights& weights, cuda::DeviceMemory& memory)
    : weights_(weights), base_(memory.as<uint8_t>()), upload_(std::in_place, kStaging) {}

cuda::DeviceMatrix DevicePlacer::matrix(const ModelMatrix& w) {
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
                take_rows(rows_between(reader, from, n0, n1).weights, from.place.step, n1 - n0, row, bytes);
                if (as.format == cuda::MatrixFormat::fp8) refuse_nan(w, n0, n1, bytes);
              }));
    place_scales(w, from, as.group, as.last, reader, to);
  }
  if (w.has_bias) to.bias = values(base_ != nullptr ? weights_.read_bias(w) : floats(w.n));
  return to;
}

const float* DevicePlacer::vector(const ModelVector& v) {
  if (!v) return nullptr;
  return values(base_ != nullptr ? weights_.read(v) : floats(v.count));
}

/// Throws Error if there is a NaN. Reading the weights as numbers finds its place.
void DevicePlacer::refuse_nan(const ModelMatrix& w, int64_t n0, int64_t n1,
                              const std::vector<uint8_t>& bytes) const {
  if (std::none_of(bytes.begin(), bytes.end(), [](uint8_t b) { return (b & 0x7F) == 0x7F; })) return;
  refuse_numbers(w, n0, n1);
}
void DevicePlacer::refuse_numbers(const ModelMatrix& w, int64_t n0, int64_t n1) const {
  std::vector<float> values(static_cast<size_t>((n1 - n0) * w.k));
  weights_.read_rows(w, n0, n1, values);
}

void DevicePlacer::place_scales(const ModelMatrix& w, const ModelWeights::Stored& from, int64_t group,
                                uint8_t last, WeightReader& reader, cuda::DeviceMatrix& to) {
  if (group > 0) {
    const auto row = static_cast<uint64_t>(w.k / group);
    to.scales =
        place(static_cast<uint64_t>(w.n) * row,
              by_rows(row, [&](int64_t n0, int64_t n1, std::vector<uint8_t>& bytes) {
                take_rows(rows_between(reader, from, n0, n1).scales, from.place.step, n1 - n0, row, bytes);
                if (std::any_of(bytes.begin(), bytes.end(), [&](uint8_t b) { return b > last; }))
                  refuse_numbers(w, n0, n1);
              }));
    if (base_ != nullptr) to.global_scale = global_scale_of(from);
  } else if (to.format == cuda::MatrixFormat::fp8) {
    to.scale_rows = from.module.scale_rows, to.scale_cols = from.module.scale_cols;
    const std::vector<float> scales = read_fp8_scales(from);
    if (!std::all_of(scales.begin(), scales.end(), [](float s) { return std::isfinite(s) && s >= 0; }))
      refuse_numbers(w, 0, w.n);
    to.scales = values(scales);
  }
}

const uint8_t* DevicePlacer::place_bytes(std::span<const uint8_t> from) {
  return place(from.size(), [&](size_t begin, std::span<uint8_t> bytes) {
    std::memcpy(bytes.data(), from.data() + begin, bytes.size());
  });
}

const uint8_t* DevicePlacer::place(uint64_t bytes, const Fill& fill) {
  uint8_t* to = base_ + at_;
  if (base_ != nullptr && bytes > 0) upload_->copy(to, static_cast<size_t>(bytes), fill);
  at_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  return to;
}

}  // namespace twofour
