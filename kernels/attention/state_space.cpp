#include "kernels/attention/state_space.h"

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/attention/attention.h"
#include "kernels/device/check.h"
#include "kernels/floats/float_ops.h"

namespace twofour::cpu {

void time_steps(float* x, int64_t m, std::span<const float> bias, float least, float most) {
  const auto heads = static_cast<int64_t>(bias.size());
  for (int64_t i = 0; i < m * heads; ++i) {
    const double sum = static_cast<double>(x[i]) + static_cast<double>(bias[static_cast<size_t>(i % heads)]);
    const double softplus = sum > 20 ? sum : std::log1p(std::exp(sum));
    x[i] = std::clamp(static_cast<float>(softplus), least, most);
  }
}

namespace {

double decay_rate(const StateScan& in, int64_t head) {
  return -std::exp(static_cast<double>(in.a_log[static_cast<size_t>(head)]));
}

/// The memory of a thread that scans chunks.
struct ScanRoom {
  explicit ScanRoom(const StateScan& in)
      : products(kScanChunk * kScanChunk),
        weights(products.size()),
        written(static_cast<size_t>(kScanChunk * in.head_size)),
        keys(static_cast<size_t>(in.state_size * kScanChunk)),
        more(static_cast<size_t>(std::max(in.state_size, kScanChunk) * in.head_size)) {}
  std::vector<float> products;  ///< C B' of a group [chunk, chunk]
  std::vector<float> weights;   ///< the same times the decays of a head
  std::vector<float> written;   ///< t x [chunk, head_size]
  std::vector<float> keys;      ///< B, transposed and decayed [state_size, chunk]
  std::vector<float> more;
};

/// Runs tokens [t0, t0 + m) of one head. `room.products` has those of its group.
void scan_chunk(const StateScan& in, int64_t head, int64_t t0, int64_t m, const FloatOps& ops, ScanRoom& room,
                float* out) {
  const int64_t size = in.head_size, out_stride = in.heads * size, group = head / (in.heads / in.groups);
  const float *x = in.x + t0 * in.stride + head * size, *b = in.b + t0 * in.stride + group * in.state_size;
  const FloatRows c{in.c + t0 * in.stride + group * in.state_size, in.stride};
  float* state = in.state + head * in.state_size * size;
  const float skip = in.d[static_cast<size_t>(head)];
  out += t0 * out_stride + head * size;

  // Sums are in double: a large decay in a chunk would else take the digits of the small ones after it.
  const double rate = decay_rate(in, head);
  double total[kScanChunk];
  for (int64_t i = 0; i < m; ++i) {
    const float step = in.steps[(t0 + i) * in.heads + head];
    total[i] = (i > 0 ? total[i - 1] : 0.0) + rate * static_cast<double>(step);
    for (int64_t n = 0; n < size; ++n)
      room.written[static_cast<size_t>(i * size + n)] = step * x[i * in.stride + n];
  }
  const auto factor = [&](double sum) { return std::exp(static_cast<float>(sum)); };

  // The values that the tokens read, from the state and from each other
  ops.multiply_columns(m, size, in.state_size, c, {state, size}, out, out_stride);
  float* weights = room.weights.data();
  for (int64_t i = 0; i < m; ++i) {
    float* row = weights + i * kScanChunk;
    for (int64_t j = 0; j <= i; ++j)
      row[j] = room.products[static_cast<size_t>(i * kScanChunk + j)] * factor(total[i] - total[j]);
    std::fill(row + i + 1, row + m, 0.0f);
  }
  ops.multiply_columns(m, size, m, {weights, kScanChunk}, {room.written.data(), size}, room.more.data(),
                       size);
  for (int64_t i = 0; i < m; ++i) {
    const float by = factor(total[i]), *more = room.more.data() + i * size;
    for (int64_t n = 0; n < size; ++n)
      out[i * out_stride + n] = by * out[i * out_stride + n] + more[n] + skip * x[i * in.stride + n];
  }

  // The state after them
  for (int64_t j = 0; j < m; ++j) {
    const float left = factor(total[m - 1] - total[j]);
    for (int64_t n = 0; n < in.state_size; ++n)
      room.keys[static_cast<size_t>(n * kScanChunk + j)] = left * b[j * in.stride + n];
  }
  ops.multiply_columns(in.state_size, size, m, {room.keys.data(), kScanChunk}, {room.written.data(), size},
                       room.more.data(), size);
  const float kept = factor(total[m - 1]);
  for (int64_t i = 0; i < in.state_size * size; ++i)
    state[i] = kept * state[i] + room.more[static_cast<size_t>(i)];
}

}  // namespace

void scan_states_by_token(const StateScan& in, float* out) {
  const int64_t size = in.head_size;
#pragma omp parallel for schedule(static)
  for (int64_t head = 0; head < in.heads; ++head) {
    const int64_t group = head / (in.heads / in.groups);
    const double rate = decay_rate(in, head);
    float* state = in.state + head * in.state_size * size;
    std::vector<float> written(static_cast<size_t>(size));
    for (int64_t i = 0; i < in.m; ++i) {
      const float *x = in.x + i * in.stride + head * size, *b = in.b + i * in.stride + group * in.state_size,
                  *c = in.c + i * in.stride + group * in.state_size;
      const float step = in.steps[i * in.heads + head],
                  decay = std::exp(static_cast<float>(rate * static_cast<double>(step)));
      float *read = out + (i * in.heads + head) * size, *write = written.data();
      for (int64_t n = 0; n < size; ++n) write[n] = step * x[n], read[n] = 0;
      for (int64_t s = 0; s < in.state_size; ++s) {
        float* row = state + s * size;
        for (int64_t n = 0; n < size; ++n) read[n] += c[s] * (row[n] = decay * row[n] + b[s] * write[n]);
      }
      const float skip = in.d[static_cast<size_t>(head)];
      for (int64_t n = 0; n < size; ++n) read[n] += skip * x[n];
    }
  }
}

void scan_states_by_chunk(const StateScan& in, float* out, Isa isa) {
  const FloatOps& ops = float_ops(isa);
  const int64_t each = in.heads / in.groups;
#pragma omp parallel
  {
    // The heads of a thread. Those of one group share the products of B and C.
    const int64_t count = omp_get_num_threads(), own = omp_get_thread_num();
    const int64_t begin = in.heads * own / count, end = in.heads * (own + 1) / count;
    ScanRoom room(in);
    for (int64_t first = begin; first < end; first = std::min(end, (first / each + 1) * each)) {
      const int64_t group = first / each, last = std::min(end, (group + 1) * each);
      for (int64_t t0 = 0; t0 < in.m; t0 += kScanChunk) {
        const int64_t m = std::min(kScanChunk, in.m - t0), at = t0 * in.stride + group * in.state_size;
        ops.multiply_rows(m, m, in.state_size, {in.c + at, in.stride}, {in.b + at, in.stride},
                          room.products.data(), kScanChunk);
        for (int64_t head = first; head < last; ++head) scan_chunk(in, head, t0, m, ops, room, out);
      }
    }
  }
}

void scan_states(const StateScan& in, float* out, Isa isa) {
  check(in.groups > 0 && in.heads % in.groups == 0, "heads in groups");
  return in.m == 1 ? scan_states_by_token(in, out) : scan_states_by_chunk(in, out, isa);
}

void gate_and_norm(const float* x, const float* gate, int64_t m, int64_t groups,
                   std::span<const float> weight, double epsilon, float* out, Isa isa) {
  const auto size = static_cast<int64_t>(weight.size()), each = size / groups;
  const FloatOps& ops = float_ops(isa);
#pragma omp parallel for schedule(static) if (m * size > 4096)
  for (int64_t i = 0; i < m; ++i) {
    float* row = out + i * size;
    std::copy_n(gate + i * size, size, row);
    ops.gate_units(row, x + i * size, size, 1.0f, 0.0f);
    for (int64_t g = 0; g < groups; ++g) {
      const auto first = static_cast<size_t>(g * each);
      rms_norm(row + first, 1, weight.subspan(first, static_cast<size_t>(each)), epsilon, row + first);
    }
  }
}

}  // namespace twofour::cpu
