#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/attention/attention.h"
#include "kernels/attention/compressed_attention.h"
#include "kernels/attention/device_compressed.h"
#include "kernels/attention/device_streams.h"
#include "kernels/attention/residual_streams.h"
#include "kernels/device/device_memory.h"
#include "tests/support/device/device.h"
#include "tests/support/device/drawn_floats.h"

// Each kernel of DeepSeek-V4's layers against the block of the CPU. Memory that a kernel must not read is
// NaN.

namespace twofour {
namespace {

using cuda::DeviceMemory;

size_t floats(int64_t n) { return static_cast<size_t>(n); }
DeviceMemory poisoned(int64_t count) {
  DeviceMemory memory(floats(std::max<int64_t>(count, 1)) * sizeof(float));
  memory.fill(0xFF);
  return memory;
}
std::vector<float> draw_frequencies(int64_t pairs) {
  std::vector<float> f;
  for (int64_t i = 0; i < pairs; ++i)
    f.push_back(std::pow(10000.0f, -static_cast<float>(i) / static_cast<float>(pairs)));
  return f;
}
/// Rows [m, count] without the numbers behind `size`.
std::vector<float> narrow(const std::vector<float>& rows, int64_t stride, int64_t from, int64_t size) {
  std::vector<float> out;
  for (size_t i = floats(from); i < rows.size(); i += floats(stride))
    out.insert(out.end(), rows.begin() + static_cast<int64_t>(i),
               rows.begin() + static_cast<int64_t>(i) + size);
  return out;
}
const std::vector<std::vector<int64_t>> kPieces = {
    {300}, {1, 2, 1, 4, 3, 116, 1, 1, 171}, {127, 1, 172}, {3, 1, 1, 1, 130, 164}};

/// Where a single token's position is read from device memory, the host's is wrong.
cuda::TokenSpan span_of(int64_t count, int64_t begin, DeviceMemory& position) {
  if (count > 1) return {count, begin, nullptr};
  const auto at = static_cast<int32_t>(begin);
  position.upload(&at, sizeof at);
  return {1, -7, position.as<int32_t>()};
}

TEST_CASE("rows are normed, rotated and multiplied by a Hadamard matrix as on the CPU") {
  if (no_gpu()) return;
  const cuda::DeviceStream stream;
  struct Case {
    int64_t m, heads, size, pairs, extra;
    bool is_normed, has_weight, is_spread;
  };
  unsigned seed = 1;
  for (const Case& c :
       {Case{5, 3, 18, 4, 0, true, false, false}, Case{1, 1, 16, 8, 3, true, true, false},
        Case{37, 2, 512, 32, 7, true, true, false}, Case{4, 64, 128, 32, 0, false, false, true},
        Case{3, 5, 8, 4, 1, true, true, true}, Case{2, 1, 257, 100, 5, true, false, false},
        Case{9, 2, 512, 3, 0, false, false, true}}) {
    CAPTURE(c.size);
    const int64_t width = c.heads * c.size, stride = width + c.extra, begin = 1000;
    const std::vector<float> x = draw(c.m * stride, ++seed), norm = draw(c.size, ++seed),
                             frequencies = draw_frequencies(c.pairs);
    std::vector<float> expected = narrow(x, stride, 0, width);
    const std::vector<float> ones(floats(c.size), 1.0f);
    if (c.is_normed)
      cpu::rms_norm(expected.data(), c.m * c.heads, c.has_weight ? norm : ones, 1e-5, expected.data());
    const cpu::Rotary rotary{frequencies, 1, true};
    cpu::rotate(rotary, expected.data(), c.m, width, c.heads, c.size, c.size - 2 * c.pairs, begin);
    if (c.is_spread) cpu::hadamard(expected.data(), c.m * c.heads, c.size);
    DeviceMemory rows(x), position(sizeof(int32_t));
    const DeviceMemory weight(norm), angles(frequencies);
    cuda::TurnedRows t;
    t.tokens = span_of(c.m, begin, position);
    t.turn = {c.is_normed, c.has_weight ? weight.as<float>() : nullptr, 1e-5, angles.as<float>(), c.pairs,
              c.is_spread};
    t.heads = c.heads, t.size = c.size, t.x = rows.as<float>(), t.stride = stride;
    cuda::turn_rows(t, stream.get());
    stream.synchronize();
    const std::vector<float> found = rows.download<float>();
    CHECK(error_of(narrow(found, stride, 0, width), expected) <= 5e-6);
    if (c.extra > 0) CHECK(narrow(found, stride, width, c.extra) == narrow(x, stride, width, c.extra));
  }
}

/// A layer's compressors: rows of projections, and the entries that the CPU makes of them.
struct EntryCase {
  int64_t ratio, width, index;  ///< sizes of entries, and of keys of the index; 0: there is none
};

TEST_CASE("entries of tokens in any pieces are those of the CPU") {
  if (no_gpu()) return;
  const cuda::DeviceStream stream;
  for (const EntryCase& c : {EntryCase{4, 18, 16}, EntryCase{128, 512, 0}, EntryCase{4, 512, 128},
                             EntryCase{128, 6, 0}, EntryCase{4, 131, 8}}) {
    CAPTURE(c.ratio);
    CAPTURE(c.width);
    const bool overlaps = c.index > 0;
    const int64_t m = 300, before = 5, behind = 3, pairs = 2;
    const int64_t own = 2 * cuda::EntryMaker::columns(c.width, overlaps),
                  of_index = 2 * cuda::EntryMaker::columns(c.index, overlaps), size = own + of_index,
                  stride = before + size + behind, kept = overlaps ? 2 * c.ratio : c.ratio;
    std::vector<float> rows = draw(m * stride, 1, 2);
    const std::vector<float> bias = draw(c.ratio * own / 2, 2), index_bias = draw(c.ratio * of_index / 2, 3),
                             norm = draw(c.width, 4), index_norm = draw(c.index, 5),
                             frequencies = draw_frequencies(pairs);
    const auto on_cpu = [&](int64_t from, int64_t width, const std::vector<float>& added,
                            const std::vector<float>& weight, bool is_index) {
      const cpu::Compressor compressor{c.ratio, width, overlaps, added};
      const int64_t columns = compressor.columns();
      const std::vector<float> values = narrow(rows, stride, from, columns),
                               gates = narrow(rows, stride, from + columns, columns);
      cpu::CompressorState state;
      std::vector<float> made = cpu::compress(compressor, values.data(), gates.data(), m, 0, state);
      const int64_t count = m / c.ratio;
      cpu::rms_norm(made.data(), count, weight, 1e-6, made.data());
      cpu::Rotary rotary{frequencies, 1, true};
      rotary.step = c.ratio;
      cpu::rotate(rotary, made.data(), count, width, 1, width, width - 2 * pairs, 0);
      if (is_index) cpu::hadamard(made.data(), count, width);
      return made;
    };
    const std::vector<float> expected = on_cpu(before, c.width, bias, norm, false);
    std::vector<float> expected_keys;
    if (overlaps) expected_keys = on_cpu(before + own, c.index, index_bias, index_norm, true);
    const DeviceMemory x(rows), db(bias), di(index_bias.empty() ? bias : index_bias), dn(norm),
        dk(index_norm.empty() ? norm : index_norm), angles(frequencies);
    for (const std::vector<int64_t>& pieces : kPieces) {
      DeviceMemory ring = poisoned(kept * size), entries = poisoned(m / c.ratio * c.width),
                   keys = poisoned(m / c.ratio * c.index), position(sizeof(int32_t));
      int64_t begin = 0;
      for (const int64_t count : pieces) {
        cuda::EntryMakers e;
        e.tokens = span_of(count, begin, position);
        e.ratio = c.ratio, e.overlaps = overlaps;
        e.rows = {x.as<float>() + begin * stride + before, stride, ring.as<float>(), kept, size};
        const cuda::RowTurn turn{true, dn.as<float>(), 1e-6, angles.as<float>(), pairs, false};
        const cuda::RowTurn of_keys{true, dk.as<float>(), 1e-6, angles.as<float>(), pairs, true};
        e.makers[e.count++] = {c.width, 0, db.as<float>(), turn, entries.as<float>()};
        if (overlaps) e.makers[e.count++] = {c.index, own, di.as<float>(), of_keys, keys.as<float>()};
        cuda::make_entries(e, stream.get());
        cuda::keep_rows(e.tokens, e.rows, stream.get());
        stream.synchronize();
        begin += count;
      }
      REQUIRE(begin == m);
      CHECK(error_of(entries.download<float>(), expected) <= 5e-6);
      if (overlaps) CHECK(error_of(keys.download<float>(), expected_keys) <= 5e-6);
    }
  }
}

TEST_CASE("the entries that a token sees are those of the CPU") {
  if (no_gpu()) return;
  const cuda::DeviceStream stream;
  struct Case {
    int64_t m, begin, heads, size, most;
  };
  unsigned seed = 1;
  for (const Case& c : {Case{60, 3, 5, 8, 6}, Case{1, 4000, 64, 128, 512}, Case{7, 9990, 33, 16, 1},
                        Case{3, 2046, 64, 128, 512}, Case{1, 40001, 3, 64, 1024}, Case{130, 0, 40, 32, 17}}) {
    CAPTURE(c.begin);
    CAPTURE(c.most);
    const int64_t entries = (c.begin + c.m) / 4, extra = 3;
    const std::vector<float> q = draw(c.m * c.heads * c.size, ++seed), keys = draw(entries * c.size, ++seed),
                             weights = draw(c.m * (c.heads + extra), ++seed);
    for (const int kind : {0, 1, 2}) {
      CAPTURE(kind);
      // Scores that differ; scores that are all 0; scores of which one is no number
      std::vector<float> own_q = q, own_keys = keys;
      if (kind == 1) std::fill(own_q.begin(), own_q.end(), 0.0f);
      if (kind == 2) own_keys[0] = NAN;
      const std::vector<float> w = narrow(weights, c.heads + extra, 0, c.heads);
      const auto expected = cpu::choose_entries({.m = c.m,
                                                 .begin = c.begin,
                                                 .heads = c.heads,
                                                 .size = c.size,
                                                 .ratio = 4,
                                                 .most = c.most,
                                                 .q = own_q.data(),
                                                 .keys = own_keys.data(),
                                                 .weights = w.data()});
      const DeviceMemory dq(own_q), dk(own_keys), dw(weights);
      DeviceMemory scores = poisoned(c.m * entries), chosen = poisoned(c.m * c.most),
                   position(sizeof(int32_t));
      cuda::DeviceEntryScores in;
      in.tokens = span_of(c.m, c.begin, position);
      in.heads = c.heads, in.size = c.size, in.ratio = 4, in.most = c.most, in.entries = entries;
      in.q = dq.as<float>(), in.keys = dk.as<float>();
      in.weights = dw.as<float>(), in.weight_stride = c.heads + extra;
      in.scores = scores.as<float>(), in.chosen = chosen.as<int32_t>();
      cuda::choose_entries(in, stream.get());
      stream.synchronize();
      const std::vector<int32_t> found = chosen.download<int32_t>();
      int64_t different = 0;
      for (int64_t i = 0; i < c.m; ++i) {
        const auto& own = expected[floats(i)];
        if ((c.begin + i + 1) / 4 <= c.most) {
          // It sees all, and nothing is written.
          CHECK(std::all_of(found.begin() + i * c.most, found.begin() + (i + 1) * c.most,
                            [](int32_t e) { return e == -1; }));
          continue;
        }
        const std::vector<int32_t> row(found.begin() + i * c.most, found.begin() + (i + 1) * c.most);
        CHECK(std::is_sorted(row.begin(), row.end()));
        CHECK(std::adjacent_find(row.begin(), row.end()) == row.end());
        std::vector<int32_t> both;
        std::set_intersection(row.begin(), row.end(), own.begin(), own.end(), std::back_inserter(both));
        different += c.most - static_cast<int64_t>(both.size());
      }
      // Scores that are nearly equal may be rounded to another order.
      CHECK(different <= (kind == 1 ? 0 : c.m * c.most / 500));
    }
  }
}

TEST_CASE("attention to a window and entries is that of the CPU, in any pieces") {
  if (no_gpu()) return;
  const cuda::DeviceStream stream;
  struct Case {
    int64_t heads, groups, size, pairs, window, ratio, most;
  };
  for (const Case& c :
       {Case{4, 2, 16, 4, 9, 4, 2}, Case{6, 3, 18, 3, 1, 0, 0}, Case{7, 7, 512, 32, 128, 128, 99},
        Case{5, 1, 300, 16, 40, 4, 30}, Case{9, 3, 72, 8, 128, 4, 1000}, Case{8, 4, 130, 8, 500, 4, 7}}) {
    CAPTURE(c.size);
    CAPTURE(c.ratio);
    const int64_t m = 300, width = c.heads * c.size, stride = c.size + 5;
    const float scale = 1 / std::sqrt(static_cast<float>(c.size));
    const std::vector<float> q = draw(m * width, 1), rows = draw(m * stride, 2),
                             entries = draw(m / 4 * c.size, 3), sinks = draw(c.heads, 4),
                             frequencies = draw_frequencies(c.pairs);
    // Every token that may see more entries than `most` sees every other one, from the last on.
    std::vector<std::vector<int32_t>> seen(floats(m));
    std::vector<int32_t> chosen(floats(m * std::max<int64_t>(c.most, 1)), 1 << 30);
    for (int64_t i = 0; i < m && c.ratio > 0; ++i) {
      const int64_t all = (i + 1) / c.ratio;
      for (int64_t e = 0; e < std::min(all, c.most); ++e) {
        const int64_t entry = all <= c.most ? e : (all - 1 - 2 * e + 2 * all) % all;
        seen[floats(i)].push_back(static_cast<int32_t>(entry));
      }
      std::sort(seen[floats(i)].begin(), seen[floats(i)].end());
      if (all > c.most)
        std::copy(seen[floats(i)].begin(), seen[floats(i)].end(), chosen.begin() + i * c.most);
    }
    const std::vector<float> tokens = narrow(rows, stride, 0, c.size);
    std::vector<float> expected(floats(m * width));
    cpu::attend_chosen({.m = m,
                        .begin = 0,
                        .heads = c.heads,
                        .size = c.size,
                        .q = q.data(),
                        .window = c.window,
                        .first = 0,
                        .tokens = tokens.data(),
                        .entries = entries.data(),
                        .chosen = c.ratio > 0 ? &seen : nullptr,
                        .sinks = sinks,
                        .scale = scale},
                       expected.data());
    cpu::Rotary rotary{frequencies, 1, true};
    rotary.backward = true;
    cpu::rotate(rotary, expected.data(), m, width, c.heads, c.size, c.size - 2 * c.pairs, 0);
    const DeviceMemory dq(q), dr(rows), de(entries), ds(sinks), angles(frequencies), dc(chosen);
    for (const std::vector<int64_t>& pieces : kPieces) {
      DeviceMemory ring = poisoned(c.window * c.size), position(sizeof(int32_t));
      std::vector<float> found;
      int64_t begin = 0;
      for (const int64_t count : pieces) {
        const cuda::KeptRows kept{dr.as<float>() + begin * stride, stride, ring.as<float>(), c.window,
                                  c.size};
        // Queries of a call in two parts
        for (int64_t first = 0, some = (count + 1) / 2; first < count; first += some) {
          const int64_t queries = std::min(some, count - first);
          DeviceMemory out = poisoned(queries * width);
          cuda::DeviceChosenAttention in;
          in.tokens = count == 1 ? span_of(1, begin, position) : cuda::TokenSpan{queries, begin + first};
          in.heads = c.heads, in.size = c.size, in.q = dq.as<float>() + (begin + first) * width;
          in.window = c.window, in.rows = kept, in.first = first;
          in.entries = de.as<float>(), in.ratio = c.ratio, in.most = c.most;
          in.chosen = dc.as<int32_t>() + (begin + first) * c.most;
          in.sinks = ds.as<float>(), in.scale = scale;
          in.frequencies = angles.as<float>(), in.pairs = c.pairs;
          in.groups = c.groups, in.out = out.as<float>();
          cuda::attend_chosen(in, stream.get());
          stream.synchronize();
          // Group by group on the device, token by token here
          const std::vector<float> made = out.download<float>();
          const int64_t each = width / c.groups;
          for (int64_t i = 0; i < queries * c.groups; ++i) {
            const auto from = made.begin() + (i % c.groups * queries + i / c.groups) * each;
            found.insert(found.end(), from, from + each);
          }
        }
        cuda::keep_rows(span_of(count, begin, position), kept, stream.get());
        stream.synchronize();
        begin += count;
      }
      CHECK(error_of(found, expected) <= 5e-6);
    }
  }
}

TEST_CASE("residual streams are mixed, read and written as on the CPU") {
  if (no_gpu()) return;
  const cuda::DeviceStream stream;
  struct Case {
    int64_t m, streams, hidden, iterations;
  };
  unsigned seed = 1;
  for (const Case& c : {Case{1, 4, 7168, 20}, Case{5, 4, 33, 20}, Case{1, 2, 300, 1}, Case{17, 3, 100, 5},
                        Case{40, 6, 64, 20}, Case{2, 64, 12, 3}}) {
    CAPTURE(c.streams);
    CAPTURE(c.hidden);
    const int64_t width = c.streams * c.hidden, rows = c.streams * (c.streams + 2);
    const float scale = 2 / std::sqrt(static_cast<float>(width));
    const std::vector<float> weight = draw(rows * width, ++seed, scale), base = draw(rows, ++seed),
                             factors = draw(3, ++seed), x = draw(c.m * width, ++seed),
                             y = draw(c.m * c.hidden, ++seed);
    const cpu::StreamMixer on_cpu{c.streams, c.hidden, weight, base, factors, c.iterations, 1e-3, 1e-5};
    const cpu::StreamMix mix = cpu::mix_streams(on_cpu, x.data(), c.m);
    std::vector<float> read(floats(c.m * c.hidden)), written = x, head(read.size());
    cpu::read_streams(mix.read, x.data(), c.streams, c.hidden, read.data());
    cpu::write_streams(mix, y.data(), c.streams, c.hidden, written.data());
    const auto first = [](const std::vector<float>& all, int64_t count) {
      return std::span(all).first(floats(count));
    };
    const cpu::StreamMixer of_head{c.streams,
                                   c.hidden,
                                   first(weight, c.streams * width),
                                   first(base, c.streams),
                                   first(factors, 1),
                                   c.iterations,
                                   1e-3,
                                   1e-5};
    cpu::read_streams(cpu::mix_for_head(of_head, x.data(), c.m), x.data(), c.streams, c.hidden, head.data());

    const DeviceMemory dw(weight), db(base), df(factors), dy(y);
    DeviceMemory dx(x), out = poisoned(c.m * c.hidden), mixes = poisoned(c.m * c.streams * (c.streams + 1));
    cuda::StreamMixer mixer{c.streams,    c.hidden, dw.as<float>(), db.as<float>(), df.as<float>(),
                            c.iterations, 1e-3,     1e-5,           false};
    DeviceMemory workspace(cuda::mix_streams_workspace(mixer, c.m));
    workspace.fill(0xFF);
    mixer.is_head = true;
    cuda::mix_streams(mixer, dx.as<float>(), c.m, out.as<float>(), nullptr, workspace.as(), stream.get());
    stream.synchronize();
    CHECK(error_of(out.download<float>(), head) <= 5e-6);
    mixer.is_head = false;
    cuda::mix_streams(mixer, dx.as<float>(), c.m, out.as<float>(), mixes.as<float>(), workspace.as(),
                      stream.get());
    cuda::write_streams(mixer, mixes.as<float>(), dy.as<float>(), c.m, dx.as<float>(), stream.get());
    stream.synchronize();
    CHECK(error_of(out.download<float>(), read) <= 5e-6);
    CHECK(error_of(dx.download<float>(), written) <= 5e-6);
    cuda::begin_streams(dy.as<float>(), c.m, c.streams, c.hidden, dx.as<float>(), stream.get());
    stream.synchronize();
    std::vector<float> copies;
    for (int64_t i = 0; i < c.m * c.streams; ++i)
      copies.insert(copies.end(), y.begin() + i / c.streams * c.hidden,
                    y.begin() + (i / c.streams + 1) * c.hidden);
    CHECK(dx.download<float>() == copies);
  }
}

}  // namespace
}  // namespace twofour
