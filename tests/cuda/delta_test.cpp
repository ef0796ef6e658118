#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/attention/attention.h"
#include "kernels/attention/delta_rule.h"
#include "kernels/attention/device_attention.h"
#include "kernels/attention/device_delta.h"
#include "kernels/device/device_memory.h"
#include "lib/run/decoder/decoder.h"
#include "tests/support/device/device.h"
#include "tests/support/device/drawn_floats.h"
#include "tests/support/models/decoder_golden.h"
#include "tests/support/scratch.h"

namespace twofour {
namespace {

using cuda::DeviceMemory;

size_t size_of(int64_t n) { return static_cast<size_t>(n); }

/// Tokens of a layer of linear attention, and what the CPU makes of them.
struct DeltaLayer {
  DeltaLayer(const cuda::DeltaColumns& columns, int taps, int64_t tokens)
      : c(columns), kernel(taps), m(tokens) {
    mixed = draw(m * c.channels(), 1), z = draw(m * c.values(), 2, 4);
    b = draw(m * c.value_heads, 3, 2), a = draw(m * c.value_heads, 4, 3);
    convolution = draw(int64_t{c.channels()} * kernel, 5);
    a_log = draw(c.value_heads, 6), dt_bias = draw(c.value_heads, 7), norm = draw(c.value_size, 8);
  }

  /// The outputs of all tokens [m, values].
  std::vector<float> on_cpu() const {
    std::vector<float> window(size_of((kernel - 1) * c.channels())), rows(mixed.size()), decay(b.size()),
        beta(b.size()), state(size_of(int64_t{c.value_heads} * c.key_size * c.value_size)), read(z.size()),
        out(z.size());
    cpu::convolve({m, c.channels(), kernel, mixed.data(), convolution.data(), window.data()}, rows.data());
    const float scale = 1 / std::sqrt(static_cast<float>(c.key_size));
    cpu::normalize_lengths(rows.data(), m, c.channels(), c.key_heads, c.key_size, scale);
    cpu::normalize_lengths(rows.data() + c.keys(), m, c.channels(), c.key_heads, c.key_size, 1);
    cpu::delta_gates({a.data(), b.data(), a_log, dt_bias, decay.data(), beta.data()}, m);
    cpu::delta_rule(
        {m, c.key_heads, c.value_heads, c.key_size, c.value_size, rows.data(), rows.data() + c.keys(),
         rows.data() + 2 * c.keys(), c.channels(), decay.data(), beta.data(), state.data()},
        read.data());
    cpu::gated_norm(read.data(), z.data(), m * c.value_heads, norm, 1e-6, out.data());
    return out;
  }

  /// The rows of the projections.
  std::vector<float> rows() const {
    std::vector<float> all(size_of(m * c.count()), NAN);
    for (int64_t i = 0; i < m; ++i) {
      float* row = all.data() + i * c.count();
      for (int j = 0; j < c.channels(); ++j) row[c.channel(j)] = mixed[size_of(i * c.channels() + j)];
      for (int j = 0; j < c.values(); ++j) row[c.z(j)] = z[size_of(i * c.values() + j)];
      for (int j = 0; j < c.value_heads; ++j) {
        row[c.b(j)] = b[size_of(i * c.value_heads + j)];
        row[c.a(j)] = a[size_of(i * c.value_heads + j)];
      }
    }
    REQUIRE(std::none_of(all.begin(), all.end(), [](float x) { return std::isnan(x); }));
    return all;
  }

  /// The same on the device, in pieces. Of pieces of one token the device knows the position.
  std::vector<float> on_device(const std::vector<int64_t>& pieces) const {
    const cuda::DeviceStream stream;
    const DeviceMemory x(rows()), taps(convolution), rates(a_log), biases(dt_bias), weights(norm);
    DeviceMemory window(size_of(int64_t{kernel} * c.channels()) * 4),
        state(size_of(int64_t{c.value_heads} * c.key_size * c.value_size) * 4),
        room(size_of(m * c.channels()) * 4), gates(size_of(m * 2 * c.value_heads) * 4),
        out(size_of(m * c.values()) * 4), position(sizeof(int32_t));
    for (DeviceMemory* memory : {&window, &state, &room, &gates, &out}) memory->fill(0xFF);  // NaN
    cuda::DeltaTokens t;
    t.columns = c, t.kernel = kernel;
    t.convolution = taps.as<float>(), t.a_log = rates.as<float>(), t.dt_bias = biases.as<float>();
    t.norm = weights.as<float>(), t.epsilon = 1e-6f;
    t.window = window.as<float>(), t.state = state.as<float>();
    t.mixed = room.as<float>(), t.gates = gates.as<float>();
    int64_t begin = 0;
    for (const int64_t count : pieces) {
      t.m = count, t.begin = count == 1 ? -1 : begin;
      t.position = count == 1 ? position.as<int32_t>() : nullptr;
      const auto at = static_cast<int32_t>(begin);
      cuda::copy_to_device(&at, position.as(), sizeof at, stream);
      t.x = x.as<float>() + begin * c.count();
      t.out = out.as<float>() + begin * c.values();
      cuda::run_delta(t, stream.get());
      stream.synchronize();
      begin += count;
    }
    REQUIRE(begin == m);
    return out.download<float>();
  }

  cuda::DeltaColumns c;
  int kernel;
  int64_t m;
  std::vector<float> mixed, z, b, a, convolution, a_log, dt_bias, norm;
};

TEST_CASE("linear attention on the device is that of the CPU, in any pieces") {
  if (no_gpu()) return;
  struct Case {
    cuda::DeltaColumns columns;
    int kernel;
    int64_t m;
  };
  for (const Case& of :
       {Case{{2, 4, 8, 12, true}, 4, 70}, Case{{3, 3, 8, 16, false}, 2, 33}, Case{{1, 1, 1, 1, false}, 1, 9},
        Case{{2, 2, 33, 5, true}, 7, 40}, Case{{4, 8, 64, 64, true}, 4, 129},
        Case{{16, 32, 128, 128, true}, 4, 65}, Case{{16, 32, 128, 128, false}, 4, 65},
        Case{{2, 6, 256, 40, false}, 4, 20}, Case{{1, 2, 100, 200, true}, 3, 64}}) {
    CAPTURE(of.columns.key_size);
    CAPTURE(of.columns.value_size);
    CAPTURE(of.columns.by_key_head);
    const DeltaLayer layer(of.columns, of.kernel, of.m);
    const std::vector<float> expected = layer.on_cpu();
    // Both are float32, with sums and exp in another order.
    CHECK(error_of(layer.on_device({of.m}), expected) <= 2e-5);
    CHECK(error_of(layer.on_device(std::vector<int64_t>(size_of(of.m), 1)), expected) <= 2e-5);
    CHECK(error_of(layer.on_device({1, 2, 1, of.m - 5, 1}), expected) <= 2e-5);
    CHECK(layer.on_device({of.m}) == layer.on_device({of.m}));
  }
}

TEST_CASE("the device refuses key heads that its registers do not take") {
  if (no_gpu()) return;
  cuda::DeltaTokens t;
  t.columns = {1, 1, 257, 8, false};
  t.m = 1;
  const cuda::DeviceStream stream;
  CHECK_THROWS_WITH(cuda::run_delta(t, stream.get()), doctest::Contains("key heads of at most 256 numbers"));
}

TEST_CASE("queries with gates between them are prepared, and gates applied, as on the CPU") {
  if (no_gpu()) return;
  const cuda::DeviceStream stream;
  const int64_t m = 5, heads = 3, size = 20, stride = 2 * heads * size + 8;
  const std::vector<float> both = draw(m * stride, 1), norm = draw(size, 2),
                           mixed = draw(m * heads * size, 3);
  std::vector<float> queries, gated = mixed;
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t h = 0; h < heads; ++h) {
      const float* query = both.data() + i * stride + 2 * h * size;
      queries.insert(queries.end(), query, query + size);
      for (int64_t j = 0; j < size; ++j)
        gated[size_of((i * heads + h) * size + j)] *= 1 / (1 + std::exp(-query[size + j]));
    }
  }
  cpu::rms_norm(queries.data(), m * heads, norm, 1e-6, queries.data());
  const DeviceMemory x(both), weights(norm);
  DeviceMemory out(queries.size() * 4), values(mixed);
  cuda::PreparedHeads prepared;
  prepared.count = 1;
  cuda::HeadRows& rows = prepared.rows[0];
  rows.m = m, rows.stride = stride, rows.heads = heads, rows.head_size = size, rows.head_stride = 2 * size;
  rows.x = x.as<float>(), rows.norm = weights.as<float>(), rows.epsilon = 1e-6;
  rows.out = out.as<float>(), rows.out_stride = heads * size;
  cuda::prepare_heads(prepared, stream.get());
  cuda::gate_heads({m, heads, size, x.as<float>() + size, stride, 2 * size, values.as<float>()},
                   stream.get());
  stream.synchronize();
  CHECK(error_of(out.download<float>(), queries) <= 2e-6);
  CHECK(error_of(values.download<float>(), gated) <= 2e-6);
}

TEST_CASE("a prompt of a hybrid in any pieces says on the device what the CPU says of it as a whole") {
  if (no_gpu()) return;
  for (const char* name : {"qwen3_next", "qwen3_next-yarn", "qwen3_5", "qwen3_5_moe-vision"}) {
    CAPTURE(name);
    const Scratch scratch;
    const DecoderGolden golden =
        read_decoder_golden(std::filesystem::path(TWOFOUR_GOLDEN_DIR) / "decoder", name);
    write_decoder_checkpoint(golden, scratch / "model");
    const Decoder cpu = Decoder::open(scratch / "model");
    Decoder cuda = Decoder::open(scratch / "model"), streamed = Decoder::open(scratch / "model");
    cuda.use_cuda();
    streamed.use_cuda(cuda.device_weight_bytes() - 1);  // layers come one after another
    const std::vector<float> expected = DecoderSequence(cpu).append(golden.tokens, true);
    for (const Decoder* decoder : {&cuda, &streamed}) {
      for (const std::vector<size_t>& pieces :
           {std::vector<size_t>{1, 2, 1, 1, 60, 1, 52}, {63, 1, 1, 53}, {65, 53}, {2, 1, 1, 1, 3, 110}}) {
        DecoderSequence sequence(*decoder);
        std::vector<float> logits;
        size_t at = 0;
        for (const size_t count : pieces) {
          const auto some = sequence.append(std::span(golden.tokens).subspan(at, count), true);
          logits.insert(logits.end(), some.begin(), some.end());
          at += count;
        }
        REQUIRE(logits.size() == expected.size());
        for (size_t i = 0; i < expected.size(); i += 48)
          CHECK(relative_error(std::span(logits).subspan(i, 48), std::span(expected).subspan(i, 48)) <= 2e-4);
      }
    }
  }
}

}  // namespace
}  // namespace twofour
