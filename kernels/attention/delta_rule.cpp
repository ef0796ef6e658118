#include "kernels/attention/delta_rule.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/attention/attention.h"
#include "kernels/device/check.h"
#include "kernels/floats/float_ops.h"

namespace twofour::cpu {

void convolve(const Convolution& in, float* out, Isa isa) {
  const int64_t before = in.kernel - 1, channels = in.channels;
  const FloatOps& ops = float_ops(isa);
  std::vector<float> taps(static_cast<size_t>(in.kernel * channels));  // [kernel, channels]
  for (int64_t c = 0; c < channels; ++c) {
    for (int64_t t = 0; t < in.kernel; ++t)
      taps[static_cast<size_t>(t * channels + c)] = in.weight[c * in.kernel + t];
  }
  // Input i of the window and the tokens, one after the other.
  const auto input = [&](int64_t i) {
    return i < before ? in.window + i * channels : in.x + (i - before) * channels;
  };
  const std::vector<float> zeros(static_cast<size_t>(channels), 0.0f);
#pragma omp parallel for schedule(static) if (in.m > 1)
  for (int64_t i = 0; i < in.m; ++i) {
    float* row = out + i * channels;
    std::copy_n(in.bias != nullptr ? in.bias : zeros.data(), channels, row);
    for (int64_t t = 0; t < in.kernel; ++t) {
      const float *x = input(i + t), *tap = taps.data() + t * channels;
      for (int64_t c = 0; c < channels; ++c) row[c] += tap[c] * x[c];
    }
    ops.gate_units(row, zeros.data(), channels, 1.0f, 1.0f);  // silu
  }
  for (int64_t i = 0; i < before; ++i) std::copy_n(input(in.m + i), channels, in.window + i * channels);
}

void normalize_lengths(float* x, int64_t m, int64_t stride, int64_t heads, int64_t size, float factor) {
#pragma omp parallel for schedule(static) if (m > 1)
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t h = 0; h < heads; ++h) {
      float* head = x + i * stride + h * size;
      double sum = 0;
      for (int64_t j = 0; j < size; ++j) sum += static_cast<double>(head[j]) * static_cast<double>(head[j]);
      const auto by = static_cast<float>(static_cast<double>(factor) / std::sqrt(sum + 1e-6));
      for (int64_t j = 0; j < size; ++j) head[j] *= by;
    }
  }
}

void delta_gates(const DeltaGates& g, int64_t m) {
  const auto heads = static_cast<int64_t>(g.a_log.size());
  for (int64_t i = 0; i < m * heads; ++i) {
    const auto h = static_cast<size_t>(i % heads);
    const double x = static_cast<double>(g.a[i]) + static_cast<double>(g.dt_bias[h]);
    const double softplus = x > 20 ? x : std::log1p(std::exp(x));
    g.decay[i] = static_cast<float>(-std::exp(static_cast<double>(g.a_log[h])) * softplus);
    g.beta[i] = static_cast<float>(1 / (1 + std::exp(-static_cast<double>(g.b[i]))));
  }
}

namespace {

/// The places of a value head and its key head.
struct DeltaHead {
  DeltaHead(const DeltaRule& in, int64_t head)
      : q(in.q + head / (in.value_heads / in.key_heads) * in.key_size),
        k(in.k + head / (in.value_heads / in.key_heads) * in.key_size),
        v(in.v + head * in.value_size),
        state(in.state + head * in.key_size * in.value_size) {}
  const float *q, *k, *v;
  float* state;
};

/// Subtracts from each row of U the rows before it: U[i] -= sum over j < i of a[i, j] U[j]. Rows of `a` are
/// kDeltaChunk floats apart. `room` has place for kRows rows.
void solve_rows(const float* a, int64_t rows, int64_t size, const FloatOps& ops, float* u, float* room) {
  constexpr int64_t kRows = 16;
  for (int64_t first = 0; first < rows; first += kRows) {
    const int64_t end = std::min(rows, first + kRows);
    if (first > 0) {
      ops.multiply_columns(end - first, size, first, {a + first * kDeltaChunk, kDeltaChunk}, {u, size}, room,
                           size);
      for (int64_t i = 0; i < (end - first) * size; ++i) u[first * size + i] -= room[i];
    }
    for (int64_t i = first; i < end; ++i) {
      for (int64_t j = first; j < i; ++j) {
        const float by = a[i * kDeltaChunk + j];
        for (int64_t n = 0; n < size; ++n) u[i * size + n] -= by * u[j * size + n];
      }
    }
  }
}

/// The memory of a thread that runs chunks.
struct ChunkRoom {
  explicit ChunkRoom(const DeltaRule& in)
      : decays(kDeltaChunk * kDeltaChunk),
        products(decays.size()),
        written(static_cast<size_t>(kDeltaChunk * in.value_size)),
        keys(static_cast<size_t>(in.key_size * kDeltaChunk)),
        more(static_cast<size_t>(std::max(in.key_size, kDeltaChunk) * in.value_size)) {}
  std::vector<float> decays, products;  ///< D, and products of keys with keys or queries, [chunk, chunk]
  std::vector<float> written;           ///< U [chunk, value_size]
  std::vector<float> keys;              ///< [key_size, chunk]
  std::vector<float> more;
};

/// Runs tokens [t0, t0 + m) of one value head.
void run_chunk(const DeltaRule& in, int64_t head, int64_t t0, int64_t m, const FloatOps& ops, ChunkRoom& room,
               float* out) {
  const DeltaHead h(in, head);
  const int64_t size = in.value_size, out_stride = in.value_heads * size;
  const FloatRows q{h.q + t0 * in.stride, in.stride}, k{h.k + t0 * in.stride, in.stride},
      state{h.state, size};
  const auto gate = [&](const float* gates, int64_t i) { return gates[(t0 + i) * in.value_heads + head]; };
  out += t0 * out_stride + head * size;
  float *decays = room.decays.data(), *products = room.products.data(), *u = room.written.data();

  // Sums are in double: a large decay in a chunk would else take the digits of the small ones after it.
  double total[kDeltaChunk];
  for (int64_t i = 0; i < m; ++i)
    total[i] = (i > 0 ? total[i - 1] : 0.0) + static_cast<double>(gate(in.decay, i));
  const auto factor = [&](int64_t i) { return std::exp(static_cast<float>(total[i])); };
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j <= i; ++j)
      decays[i * kDeltaChunk + j] = std::exp(static_cast<float>(total[i] - total[j]));
  }

  // The values that the tokens write
  ops.multiply_columns(m, size, in.key_size, k, state, u, size);
  ops.multiply_rows(m, m, in.key_size, k, k, products, kDeltaChunk);
  for (int64_t i = 0; i < m; ++i) {
    const float beta = gate(in.beta, i), by = factor(i), *v = h.v + (t0 + i) * in.stride;
    for (int64_t n = 0; n < size; ++n) u[i * size + n] = beta * (v[n] - by * u[i * size + n]);
    for (int64_t j = 0; j < i; ++j) products[i * kDeltaChunk + j] *= beta * decays[i * kDeltaChunk + j];
  }
  solve_rows(products, m, size, ops, u, room.more.data());

  // The values that they read
  ops.multiply_columns(m, size, in.key_size, q, state, out, out_stride);
  ops.multiply_rows(m, m, in.key_size, q, k, products, kDeltaChunk);
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < m; ++j)
      products[i * kDeltaChunk + j] =
          j <= i ? products[i * kDeltaChunk + j] * decays[i * kDeltaChunk + j] : 0;
  }
  ops.multiply_columns(m, size, m, {products, kDeltaChunk}, {u, size}, room.more.data(), size);
  for (int64_t i = 0; i < m; ++i) {
    const float by = factor(i);
    for (int64_t n = 0; n < size; ++n)
      out[i * out_stride + n] = by * out[i * out_stride + n] + room.more[static_cast<size_t>(i * size + n)];
  }

  // The state after them
  const float *last = decays + (m - 1) * kDeltaChunk, by = factor(m - 1);
  for (int64_t d = 0; d < in.key_size; ++d) {
    for (int64_t j = 0; j < m; ++j)
      room.keys[static_cast<size_t>(d * kDeltaChunk + j)] = last[j] * k.data[j * in.stride + d];
  }
  ops.multiply_columns(in.key_size, size, m, {room.keys.data(), kDeltaChunk}, {u, size}, room.more.data(),
                       size);
  for (int64_t i = 0; i < in.key_size * size; ++i)
    h.state[i] = by * h.state[i] + room.more[static_cast<size_t>(i)];
}

}  // namespace

void delta_rule_by_token(const DeltaRule& in, float* out) {
  const int64_t size = in.value_size;
#pragma omp parallel for schedule(static)
  for (int64_t head = 0; head < in.value_heads; ++head) {
    const DeltaHead h(in, head);
    std::vector<float> u(static_cast<size_t>(size));
    for (int64_t i = 0; i < in.m; ++i) {
      const float *q = h.q + i * in.stride, *k = h.k + i * in.stride, *v = h.v + i * in.stride;
      const float decay = std::exp(in.decay[i * in.value_heads + head]),
                  beta = in.beta[i * in.value_heads + head];
      float *read = out + (i * in.value_heads + head) * size, *write = u.data();
      std::fill(write, write + size, 0.0f);
      for (int64_t d = 0; d < in.key_size; ++d) {
        float* row = h.state + d * size;
        for (int64_t n = 0; n < size; ++n) write[n] += k[d] * (row[n] *= decay);
      }
      for (int64_t n = 0; n < size; ++n) write[n] = beta * (v[n] - write[n]), read[n] = 0;
      for (int64_t d = 0; d < in.key_size; ++d) {
        float* row = h.state + d * size;
        for (int64_t n = 0; n < size; ++n) read[n] += q[d] * (row[n] += k[d] * write[n]);
      }
    }
  }
}

void delta_rule_by_chunk(const DeltaRule& in, float* out, Isa isa) {
  const FloatOps& ops = float_ops(isa);
#pragma omp parallel
  {
    ChunkRoom room(in);
#pragma omp for schedule(static)
    for (int64_t head = 0; head < in.value_heads; ++head) {
      for (int64_t t0 = 0; t0 < in.m; t0 += kDeltaChunk)
        run_chunk(in, head, t0, std::min(kDeltaChunk, in.m - t0), ops, room, out);
    }
  }
}

void delta_rule(const DeltaRule& in, float* out, Isa isa) {
  check(in.key_heads > 0 && in.value_heads % in.key_heads == 0, "value heads in groups of key heads");
  return in.m == 1 ? delta_rule_by_token(in, out) : delta_rule_by_chunk(in, out, isa);
}

void gated_norm(const float* x, const float* gate, int64_t m, std::span<const float> weight, double epsilon,
                float* out, Isa isa) {
  const auto size = static_cast<int64_t>(weight.size());
  const FloatOps& ops = float_ops(isa);
#pragma omp parallel if (m * size > 4096)
  {
    std::vector<float> normed(weight.size());
#pragma omp for schedule(static)
    for (int64_t i = 0; i < m; ++i) {
      rms_norm(x + i * size, 1, weight, epsilon, normed.data());
      std::copy_n(gate + i * size, size, out + i * size);
      ops.gate_units(out + i * size, normed.data(), size, 1.0f, 0.0f);
    }
  }
}

}  // namespace twofour::cpu
