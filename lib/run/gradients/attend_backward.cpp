#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/device/check.h"
#include "kernels/device/isa.h"
#include "kernels/floats/float_ops.h"
#include "lib/run/gradients/blocks.h"

namespace twofour {
namespace {

/// The number of queries of a head whose scores are in memory at a time.
constexpr int64_t kQueriesAtOnce = 128;

/// Buffers for the scores of one head.
struct ScoreBuffers {
  std::vector<float> weights, gradients;                ///< [queries, keys]
  std::vector<float> turned_weights, turned_gradients;  ///< [keys, queries]
  std::vector<float> sums;                              ///< [keys, head_size or value_size]
};

void turn_scores(const float* scores, int64_t rows, int64_t count, std::vector<float>& turned) {
  turned.resize(static_cast<size_t>(rows * count));
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < count; ++j) turned[static_cast<size_t>(j * rows + i)] = scores[i * count + j];
  }
}

/// to [count, width], with rows `stride` apart, += turned [count, rows] x [rows, width].
void add_turned(const FloatOps& ops, const std::vector<float>& turned, int64_t count, int64_t rows,
                FloatRows x, int64_t width, float* to, int64_t stride, std::vector<float>& sums) {
  sums.resize(static_cast<size_t>(count * width));
  ops.multiply_columns(count, width, rows, {turned.data(), rows}, x, sums.data(), width);
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t j = 0; j < width; ++j) to[i * stride + j] += sums[static_cast<size_t>(i * width + j)];
  }
}

/// Adds the gradients of queries [q0, q1) of one head.
void add_block(const cpu::Attention& in, int64_t head, int64_t q0, int64_t q1, const float* dy,
               const AttentionGradients& to, const FloatOps& ops, ScoreBuffers& b) {
  const int64_t rows = q1 - q0, kv = head / (in.heads / in.kv_heads);
  const int64_t begin = in.window > 0 ? std::max<int64_t>(0, q0 + 1 - in.window) : 0, count = q1 - begin;
  const int64_t query_stride = in.heads * in.head_size, output_stride = in.heads * in.value_size;
  const int64_t key_stride = in.kv_heads * in.head_size, value_stride = in.kv_heads * in.value_size;
  const FloatRows q{in.q + q0 * query_stride + head * in.head_size, query_stride};
  const FloatRows k{in.k + begin * key_stride + kv * in.head_size, key_stride};
  const FloatRows v{in.v + begin * value_stride + kv * in.value_size, value_stride};
  const FloatRows d{dy + q0 * output_stride + head * in.value_size, output_stride};
  b.weights.resize(static_cast<size_t>(rows * count));
  b.gradients.resize(b.weights.size());
  ops.multiply_rows(rows, count, in.head_size, q, k, b.weights.data(), count);
  ops.multiply_rows(rows, count, in.value_size, d, v, b.gradients.data(), count);
  const float sink =
      in.sinks.empty() ? -std::numeric_limits<float>::infinity() : in.sinks[static_cast<size_t>(head)];
  for (int64_t i = 0; i < rows; ++i) {
    float *p = b.weights.data() + i * count, *g = b.gradients.data() + i * count;
    const int64_t end = q0 + i + 1 - begin, from = in.window > 0 ? std::max<int64_t>(0, end - in.window) : 0;
    for (int64_t j = from; j < end; ++j) p[j] *= in.scale;
    ops.softmax(p + from, end - from, sink);
    double mean = 0;
    for (int64_t j = from; j < end; ++j) mean += static_cast<double>(p[j]) * static_cast<double>(g[j]);
    for (int64_t j = from; j < end; ++j) g[j] = p[j] * (g[j] - static_cast<float>(mean)) * in.scale;
    for (float* row : {p, g}) {
      std::fill(row, row + from, 0.0f);
      std::fill(row + end, row + count, 0.0f);
    }
  }
  ops.multiply_columns(rows, in.head_size, count, {b.gradients.data(), count}, k,
                       to.q + q0 * query_stride + head * in.head_size, query_stride);
  turn_scores(b.weights.data(), rows, count, b.turned_weights);
  turn_scores(b.gradients.data(), rows, count, b.turned_gradients);
  add_turned(ops, b.turned_gradients, count, rows, q, in.head_size,
             to.k + begin * key_stride + kv * in.head_size, key_stride, b.sums);
  add_turned(ops, b.turned_weights, count, rows, d, in.value_size,
             to.v + begin * value_stride + kv * in.value_size, value_stride, b.sums);
}

}  // namespace

void add_attention_gradient(const cpu::Attention& in, int64_t kv_head, const float* dy,
                            const AttentionGradients& to) {
  check(in.heads % in.kv_heads == 0 && in.queries == in.keys, "heads in groups, and a query of every key");
  const FloatOps& ops = float_ops(best_isa());
  const int64_t group = in.heads / in.kv_heads;
  ScoreBuffers buffers;
  for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    for (int64_t q0 = 0; q0 < in.queries; q0 += kQueriesAtOnce)
      add_block(in, head, q0, std::min(in.queries, q0 + kQueriesAtOnce), dy, to, ops, buffers);
  }
}

uint64_t attention_gradient_bytes(int64_t tokens, int64_t head_size, int64_t value_size) {
  return sizeof(float) * static_cast<uint64_t>(tokens) *
         static_cast<uint64_t>(4 * kQueriesAtOnce + std::max(head_size, value_size));
}

}  // namespace twofour
