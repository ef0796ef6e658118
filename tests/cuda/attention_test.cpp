#include "kernels/attention/attention.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "kernels/attention/device_attention.h"
#include "kernels/device/device_memory.h"
#include "tests/support/device/device.h"
#include "tests/support/device/drawn_floats.h"

namespace twofour {
namespace {

using cuda::DeviceMemory;

TEST_CASE("attention on the device is that of the CPU, of a prompt and of one query") {
  if (no_gpu()) return;
  const cuda::DeviceStream stream;
  struct Case {
    int64_t queries, keys, heads, kv_heads, head_size, value_size, window;
    bool sinks;
  };
  unsigned seed = 1;
  for (const Case& c : {Case{70, 70, 4, 2, 16, 16, 0, false}, Case{1, 1, 2, 1, 8, 8, 0, true},
                        Case{33, 200, 8, 1, 64, 64, 50, true}, Case{129, 129, 6, 6, 24, 16, 0, false},
                        Case{40, 140, 10, 2, 128, 128, 0, false}, Case{65, 65, 3, 3, 192, 128, 0, false},
                        Case{20, 90, 4, 4, 80, 96, 7, true}, Case{30, 60, 2, 2, 256, 200, 0, true},
                        Case{1, 1000, 16, 2, 128, 128, 0, true}, Case{1, 333, 3, 3, 192, 128, 100, false},
                        // Blocks with more keys than they take at a time
                        Case{1, 5003, 16, 2, 128, 128, 0, true}, Case{1, 3001, 8, 8, 192, 128, 0, false},
                        Case{1, 2600, 4, 1, 256, 256, 0, true}, Case{1, 9000, 64, 8, 64, 64, 2500, false},
                        Case{1, 4001, 12, 4, 30, 18, 0, true}, Case{1, 2305, 5, 1, 128, 96, 0, false}}) {
    CAPTURE(c.queries);
    CAPTURE(c.keys);
    CAPTURE(c.head_size);
    const std::vector<float> q = draw(c.queries * c.heads * c.head_size, ++seed),
                             k = draw(c.keys * c.kv_heads * c.head_size, ++seed),
                             v = draw(c.keys * c.kv_heads * c.value_size, ++seed),
                             sinks = draw(c.heads, ++seed);
    const cpu::Attention in{.queries = c.queries,
                            .keys = c.keys,
                            .heads = c.heads,
                            .kv_heads = c.kv_heads,
                            .head_size = c.head_size,
                            .value_size = c.value_size,
                            .q = q.data(),
                            .k = k.data(),
                            .v = v.data(),
                            .sinks = c.sinks ? std::span<const float>(sinks) : std::span<const float>(),
                            .scale = 0.3f,
                            .window = c.window};
    std::vector<float> expected(static_cast<size_t>(c.queries * c.heads * c.value_size));
    cpu::attend(in, expected.data());
    const DeviceMemory dq(q), dk(k), dv(v), dsinks(sinks);
    DeviceMemory out(expected.size() * sizeof(float));
    cuda::DeviceAttention device;
    device.queries = c.queries, device.keys = c.keys, device.heads = c.heads, device.kv_heads = c.kv_heads;
    device.head_size = c.head_size, device.value_size = c.value_size;
    device.q = dq.as<float>(), device.stride = c.heads * c.head_size;
    device.k = dk.as<float>(), device.v = dv.as<float>();
    device.sinks = c.sinks ? dsinks.as<float>() : nullptr;
    device.scale = 0.3f, device.window = c.window;
    cuda::attend(device, out.as<float>(), stream.get());
    stream.synchronize();
    CHECK(error_of(out.download<float>(), expected) <= 5e-5);
    // The last query alone, twice, as counters start anew: its key and value come from rows of their own.
    const int64_t width = c.heads * c.value_size;
    const std::vector<float> last(expected.end() - width, expected.end());
    const DeviceMemory position(std::vector<int32_t>{static_cast<int32_t>(c.keys - 1)});
    std::vector<float> old_k = k, old_v = v;
    const int64_t key_width = c.kv_heads * c.head_size, value_width = c.kv_heads * c.value_size;
    const std::vector<float> own_k(k.end() - key_width, k.end()), own_v(v.end() - value_width, v.end());
    std::fill(old_k.end() - key_width, old_k.end(), NAN);
    std::fill(old_v.end() - value_width, old_v.end(), NAN);
    const DeviceMemory cached_k(old_k), cached_v(old_v), new_k(own_k), new_v(own_v);
    cuda::PreparedHeads heads;
    heads.count = 3;
    heads.rows[0].heads = c.heads, heads.rows[1].heads = heads.rows[2].heads = c.kv_heads;
    heads.rows[0].head_size = heads.rows[1].head_size = c.head_size, heads.rows[2].head_size = c.value_size;
    heads.rows[0].x = dq.as<float>() + (c.queries - 1) * c.heads * c.head_size;
    heads.rows[1].x = new_k.as<float>(), heads.rows[2].x = new_v.as<float>();
    heads.rows[1].out = cached_k.as<float>(), heads.rows[2].out = cached_v.as<float>();
    device.queries = 1, device.keys = 0, device.position = position.as<int32_t>();
    device.q = nullptr, device.k = cached_k.as<float>(), device.v = cached_v.as<float>();
    DeviceMemory workspace(cuda::attend_one_workspace(device)), one(last.size() * sizeof(float));
    workspace.fill(0);
    for (int i = 0; i < 2; ++i) {
      one.fill(0xFF);
      cuda::attend_one(device, heads, one.as<float>(), workspace.as(), stream.get());
      stream.synchronize();
      CHECK(error_of(one.download<float>(), last) <= 5e-6);
    }
    CHECK(cached_k.download<float>() == k);
    CHECK(cached_v.download<float>() == v);
  }
}

}  // namespace
}  // namespace twofour
