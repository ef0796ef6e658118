#include "kernels/attention/attention.h"

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "formats/atom.h"
#include "kernels/device/check.h"
#include "kernels/floats/float_ops.h"

namespace twofour::cpu {

void rms_norm(const float* x, int64_t m, std::span<const float> weight, double epsilon, float* out) {
  const auto size = static_cast<int64_t>(weight.size());
#pragma omp parallel for schedule(static) if (m * size > 4096)
  for (int64_t i = 0; i < m; ++i) {
    const float* row = x + i * size;
    double sum = 0;
    for (int64_t j = 0; j < size; ++j) sum += static_cast<double>(row[j]) * static_cast<double>(row[j]);
    const auto factor = static_cast<float>(1.0 / std::sqrt(sum / static_cast<double>(size) + epsilon));
    for (int64_t j = 0; j < size; ++j) out[i * size + j] = row[j] * factor * weight[static_cast<size_t>(j)];
  }
}

void rotate(const Rotary& rotary, float* x, int64_t m, int64_t stride, int64_t heads, int64_t head_size,
            int64_t offset, int64_t begin) {
  const auto pairs = static_cast<int64_t>(rotary.frequencies.size());
  check(offset + 2 * pairs <= head_size, "pairs within a head");
  std::vector<float> cosines(static_cast<size_t>(m * pairs)), sines(cosines.size());
#pragma omp parallel for schedule(static) if (m > 1)
  for (int64_t i = 0; i < m; ++i) {
    float *cosine = cosines.data() + i * pairs, *sine = sines.data() + i * pairs;
    for (int64_t j = 0; j < pairs; ++j) {
      const float angle =
          static_cast<float>(begin + i * rotary.step) * rotary.frequencies[static_cast<size_t>(j)];
      cosine[j] = std::cos(angle) * rotary.amplitude;
      sine[j] = std::sin(angle) * (rotary.backward ? -rotary.amplitude : rotary.amplitude);
    }
    const int64_t step = rotary.interleaved ? 2 : 1, apart = rotary.interleaved ? 1 : pairs;
    for (int64_t h = 0; h < heads; ++h) {
      float* head = x + i * stride + h * head_size + offset;
      for (int64_t j = 0; j < pairs; ++j) {
        const float a = head[j * step], b = head[j * step + apart];
        head[j * step] = a * cosine[j] - b * sine[j];
        head[j * step + apart] = b * cosine[j] + a * sine[j];
      }
    }
  }
}

namespace {

/// The number of queries of a head that are multiplied at a time.
constexpr int64_t kQueries = 128;

/// Computes queries [q0, q1) of one head. `scores` has room for [q1 - q0, keys].
void attend_block(const Attention& in, int64_t head, int64_t q0, int64_t q1, float* scores, float* out,
                  const FloatOps& ops) {
  const int64_t first = in.keys - in.queries + q0, rows = q1 - q0;  // position of the first query
  const int64_t begin = in.window > 0 ? std::max<int64_t>(0, first + 1 - in.window) : 0;
  const int64_t count = first + rows - begin, kv = head / (in.heads / in.kv_heads);
  const int64_t key_stride = in.kv_heads * in.head_size, value_stride = in.kv_heads * in.value_size;
  ops.multiply_rows(rows, count, in.head_size,
                    {in.q + (q0 * in.heads + head) * in.head_size, in.heads * in.head_size},
                    {in.k + begin * key_stride + kv * in.head_size, key_stride}, scores, count);
  const float sink =
      in.sinks.empty() ? -std::numeric_limits<float>::infinity() : in.sinks[static_cast<size_t>(head)];
  for (int64_t i = 0; i < rows; ++i) {
    float* row = scores + i * count;
    const int64_t end = first + i + 1 - begin;
    const int64_t from = in.window > 0 ? std::max<int64_t>(0, end - in.window) : 0;
    for (int64_t j = from; j < end; ++j) row[j] *= in.scale;
    ops.softmax(row + from, end - from, sink);
    std::fill(row, row + from, 0.0f);
    std::fill(row + end, row + count, 0.0f);
  }
  ops.multiply_columns(rows, in.value_size, count, {scores, count},
                       {in.v + begin * value_stride + kv * in.value_size, value_stride},
                       out + (q0 * in.heads + head) * in.value_size, in.heads * in.value_size);
}

}  // namespace

void attend(const Attention& in, float* out, Isa isa) {
  check(in.heads % in.kv_heads == 0 && in.queries <= in.keys, "heads in groups, and a key of every query");
  const FloatOps& ops = float_ops(isa);
  const int64_t blocks = ceil_div(in.queries, kQueries);
  const int64_t most = std::min(in.queries, kQueries) * in.keys;
  const int threads = static_cast<int>(std::min<int64_t>(omp_get_max_threads(), blocks * in.heads));
  std::vector<float> scores(static_cast<size_t>(most * threads));
#pragma omp parallel for schedule(dynamic) num_threads(threads)
  for (int64_t item = 0; item < blocks * in.heads; ++item) {
    const int64_t q0 = (blocks - 1 - item / in.heads) * kQueries;  // the longest come first
    attend_block(in, item % in.heads, q0, std::min(in.queries, q0 + kQueries),
                 scores.data() + omp_get_thread_num() * most, out, ops);
  }
}

}  // namespace twofour::cpu
