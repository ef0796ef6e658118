#include "kernels/attention/compressed_attention.h"

#include <omp.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

#include "formats/atom.h"
#include "kernels/device/check.h"
#include "kernels/floats/float_ops.h"

namespace twofour::cpu {
namespace {

/// A row of values and gates that counts in an entry.
struct Member {
  const float *value, *gate;
};

/// The weighted mean of members, channel by channel. Gates may be of any size, so the largest is subtracted.
void weighted_mean(const std::vector<Member>& members, int64_t width, float* out) {
  std::vector<float> most(static_cast<size_t>(width), -std::numeric_limits<float>::infinity());
  std::vector<float> total(most.size(), 0.0f);
  for (const Member& x : members) {
    for (int64_t c = 0; c < width; ++c) {
      float& largest = most[static_cast<size_t>(c)];
      largest = std::max(largest, x.gate[c]);
    }
  }
  std::fill_n(out, width, 0.0f);
  for (const Member& x : members) {
    for (int64_t c = 0; c < width; ++c) {
      const float weight = std::exp(x.gate[c] - most[static_cast<size_t>(c)]);
      total[static_cast<size_t>(c)] += weight;
      out[c] += weight * x.value[c];
    }
  }
  for (int64_t c = 0; c < width; ++c) out[c] /= total[static_cast<size_t>(c)];
}

}  // namespace

int64_t Compressor::first_needed(int64_t tokens) const {
  const int64_t own = tokens / ratio * ratio;
  return overlaps ? std::max<int64_t>(0, own - ratio) : own;
}

std::vector<float> compress(const Compressor& c, const float* values, const float* gates, int64_t m,
                            int64_t begin, CompressorState& state) {
  const int64_t columns = c.columns(), first = c.first_needed(begin), end = begin + m;
  check(static_cast<int64_t>(state.values.size()) == (begin - first) * columns, "the tokens before");
  state.values.insert(state.values.end(), values, values + m * columns);
  for (int64_t i = 0; i < m; ++i) {
    // The bias belongs to the token's place, so it is added once, as the token arrives.
    const float* bias = c.bias.data() + (begin + i) % c.ratio * columns;
    for (int64_t j = 0; j < columns; ++j) state.gates.push_back(gates[i * columns + j] + bias[j]);
  }
  const int64_t from = begin / c.ratio, count = end / c.ratio - from;
  std::vector<float> entries(static_cast<size_t>(count * c.width));
#pragma omp parallel for schedule(static) if (count > 1)
  for (int64_t i = 0; i < count; ++i) {
    const int64_t entry = from + i;
    std::vector<Member> members;
    const auto add = [&](int64_t token, int64_t column) {
      const int64_t place = (token - first) * columns + column;
      members.push_back({state.values.data() + place, state.gates.data() + place});
    };
    // Entry 0 has no tokens before it. They do not count, as with weights of 0.
    for (int64_t t = 0; t < c.ratio && c.overlaps && entry > 0; ++t) add((entry - 1) * c.ratio + t, 0);
    for (int64_t t = 0; t < c.ratio; ++t) add(entry * c.ratio + t, columns - c.width);
    weighted_mean(members, c.width, entries.data() + i * c.width);
  }
  const int64_t gone = (c.first_needed(end) - first) * columns;
  for (std::vector<float>* rows : {&state.values, &state.gates})
    rows->erase(rows->begin(), rows->begin() + gone);
  return entries;
}

void hadamard(float* x, int64_t rows, int64_t size) {
  check(std::has_single_bit(static_cast<uint64_t>(size)), "a power of two");
  const float factor = 1.0f / std::sqrt(static_cast<float>(size));
#pragma omp parallel for schedule(static) if (rows > 16)
  for (int64_t i = 0; i < rows; ++i) {
    float* row = x + i * size;
    for (int64_t half = 1; half < size; half *= 2) {
      for (int64_t j = 0; j < size; ++j) {
        if ((j & half) != 0) continue;
        const float a = row[j], b = row[j + half];
        row[j] = a + b;
        row[j + half] = a - b;
      }
    }
    for (int64_t j = 0; j < size; ++j) row[j] *= factor;
  }
}

namespace {

/// The scores of the entries [0, count) for one token. Sums over heads are float32, as in transformers and
/// DeepGEMM. DeepSeek's code has them in BF16, which rounds activations.
std::vector<float> score_entries(const EntryScores& in, int64_t token, int64_t count, const FloatOps& ops) {
  std::vector<float> products(static_cast<size_t>(in.heads * count)), scores(static_cast<size_t>(count));
  ops.multiply_rows(in.heads, count, in.size, {in.q + token * in.heads * in.size, in.size},
                    {in.keys, in.size}, products.data(), count);
  for (int64_t h = 0; h < in.heads; ++h) {
    const float weight = in.weights[token * in.heads + h], *row = products.data() + h * count;
    for (int64_t e = 0; e < count; ++e) scores[static_cast<size_t>(e)] += weight * std::max(row[e], 0.0f);
  }
  // No source defines scores that are no numbers. They come last, so that the order stays strict.
  for (float& s : scores) s = std::isnan(s) ? -std::numeric_limits<float>::infinity() : s;
  return scores;
}

/// The indices of the `most` largest scores, ascending.
std::vector<int32_t> largest_scores(const std::vector<float>& scores, int64_t most) {
  std::vector<int32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::nth_element(order.begin(), order.begin() + most, order.end(), [&](int32_t a, int32_t b) {
    const float x = scores[static_cast<size_t>(a)], y = scores[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  });
  order.resize(static_cast<size_t>(most));
  std::sort(order.begin(), order.end());
  return order;
}

}  // namespace

std::vector<std::vector<int32_t>> choose_entries(const EntryScores& in, Isa isa) {
  std::vector<std::vector<int32_t>> chosen(static_cast<size_t>(in.m));
  const FloatOps& ops = float_ops(isa);
#pragma omp parallel for schedule(dynamic) if (in.m > 1)
  for (int64_t i = 0; i < in.m; ++i) {
    std::vector<int32_t>& own = chosen[static_cast<size_t>(i)];
    const int64_t count = (in.begin + i + 1) / in.ratio;
    if (count > in.most) {
      own = largest_scores(score_entries(in, i, count, ops), in.most);
    } else {
      own.resize(static_cast<size_t>(count));
      std::iota(own.begin(), own.end(), 0);
    }
  }
  return chosen;
}

namespace {

/// The number of heads of a query that are multiplied at a time.
constexpr int64_t kHeads = 16;

/// Heads [h0, h1) of one query. `rows` and `scores` are memory of the thread.
void attend_heads(const ChosenAttention& in, int64_t query, int64_t h0, int64_t h1, std::vector<float>& rows,
                  std::vector<float>& scores, float* out, const FloatOps& ops) {
  const int64_t position = in.begin + query, from = std::max<int64_t>(0, position + 1 - in.window);
  // Tokens come before entries. The order only decides how sums are rounded.
  rows.assign(in.tokens + (from - in.first) * in.size, in.tokens + (position + 1 - in.first) * in.size);
  if (in.chosen != nullptr) {
    for (const int32_t e : (*in.chosen)[static_cast<size_t>(query)])
      rows.insert(rows.end(), in.entries + e * in.size, in.entries + (e + 1) * in.size);
  }
  const int64_t count = static_cast<int64_t>(rows.size()) / in.size, heads = h1 - h0;
  scores.resize(static_cast<size_t>(heads * count));
  ops.multiply_rows(heads, count, in.size, {in.q + (query * in.heads + h0) * in.size, in.size},
                    {rows.data(), in.size}, scores.data(), count);
  for (int64_t h = 0; h < heads; ++h) {
    float* row = scores.data() + h * count;
    for (int64_t j = 0; j < count; ++j) row[j] *= in.scale;
    // One softmax over tokens, entries and the sink. It is never empty, as each token sees itself.
    ops.softmax(row, count, in.sinks[static_cast<size_t>(h0 + h)]);
  }
  ops.multiply_columns(heads, in.size, count, {scores.data(), count}, {rows.data(), in.size},
                       out + (query * in.heads + h0) * in.size, in.size);
}

}  // namespace

void attend_chosen(const ChosenAttention& in, float* out, Isa isa) {
  const FloatOps& ops = float_ops(isa);
  const int64_t blocks = ceil_div(in.heads, kHeads);
#pragma omp parallel
  {
    std::vector<float> rows, scores;
#pragma omp for schedule(dynamic)
    for (int64_t item = 0; item < in.m * blocks; ++item) {
      const int64_t h0 = item % blocks * kHeads;
      attend_heads(in, item / blocks, h0, std::min(in.heads, h0 + kHeads), rows, scores, out, ops);
    }
  }
}

}  // namespace twofour::cpu
