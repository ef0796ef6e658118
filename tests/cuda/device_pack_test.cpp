#include "kernels/pack/device_pack.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "formats/error.h"
#include "kernels/numbers/dequantize.h"
#include "kernels/numbers/quantize.h"
#include "kernels/pack/dense_pack.h"
#include "tests/support/device/device.h"
#include "tests/support/device/device_experts.h"

namespace device_pack_test {

using namespace twofour;
using namespace twofour::cuda;

namespace {

constexpr size_t kGuard = 64;

/// Host bytes and a device copy between guards.
struct Guarded {
  size_t bytes;
  DeviceMemory device;
  explicit Guarded(size_t count, int fill = 0xA5) : bytes(count), device(count + 2 * kGuard) {
    device.fill(fill);
  }
  uint8_t* data() const { return device.as<uint8_t>() + kGuard; }
  /// What was written, after a look at the guards.
  std::vector<uint8_t> read(int fill = 0xA5) const {
    const auto all = device.download<uint8_t>();
    const auto is_fill = [fill](uint8_t byte) { return byte == fill; };
    CHECK(std::all_of(all.begin(), all.begin() + kGuard, is_fill));
    CHECK(std::all_of(all.end() - kGuard, all.end(), is_fill));
    return {all.begin() + kGuard, all.end() - kGuard};
  }
};

/// Codes and scales with ties, zeros and -0, at a given distance from an aligned address.
struct DenseSource {
  DenseExperts dense;
  DeviceMemory codes, scales;
  DenseMatrices device;
  DenseSource(int64_t e, int64_t n, int64_t k, size_t misalignment = 0)
      : dense(e, n, k, static_cast<unsigned>(n * k + e)) {
    std::mt19937 random(9);
    for (uint8_t& byte : dense.codes)
      if (random() % 3 == 0) byte = static_cast<uint8_t>((random() % 2 * 8) | (random() % 2 * 8 + 3) << 4);
    const auto copy = [&](const std::vector<uint8_t>& from) {
      DeviceMemory to(from.size() + misalignment + 1);
      to.upload(from.data(), from.size(), misalignment);
      return to;
    };
    codes = copy(dense.codes), scales = copy(dense.scales);
    device = {codes.as<uint8_t>() + misalignment, scales.as<uint8_t>() + misalignment, e, n, k};
  }
};

template <class Layout>
void check_prune(int64_t e, int64_t n, int64_t k, size_t misalignment = 0) {
  CAPTURE(e);
  CAPTURE(n);
  CAPTURE(k);
  const DenseSource source(e, n, k, misalignment);
  const Shape one{1, n, k};
  std::vector<Guarded> parts;
  uint8_t* pointers[3] = {};
  for (int p = 0; p < Layout::part_count; ++p) {
    parts.emplace_back(static_cast<size_t>(e * Layout::part(p, one).bytes()));
    pointers[p] = parts.back().data();
  }
  const DeviceStream stream;
  prune_pack(source.device, Layout::part_count == 3 ? SparseLayout::planes : SparseLayout::packed, pointers,
             stream.get());
  stream.synchronize();
  for (int64_t i = 0; i < e; ++i) {
    std::vector<std::vector<uint8_t>> want;
    std::vector<uint8_t*> to;
    for (int p = 0; p < Layout::part_count; ++p)
      want.emplace_back(static_cast<size_t>(Layout::part(p, one).bytes()));
    for (auto& part : want) to.push_back(part.data());
    twofour::prune_pack<Layout>(source.dense.rows(i), one, 0, to);
    for (size_t p = 0; p < want.size(); ++p) {
      const auto got = parts[p].read();
      CHECK(
          std::equal(want[p].begin(), want[p].end(), got.begin() + i * static_cast<int64_t>(want[p].size())));
    }
  }
}

}  // namespace

TEST_CASE("the device prunes and packs as the CPU does") {
  if (no_gpu()) return;
  for (const int64_t n : {1, 4, 16, 100, 128, 144, 272}) {
    for (const int64_t k : {16, 32, 48, 256, 272, 544}) {
      check_prune<KMajorPlanes>(2, n, k);
      check_prune<KMajorPacked>(2, n, k);
    }
  }
  check_prune<KMajorPlanes>(1, 130, 272, 3);
  check_prune<KMajorPacked>(3, 512, 1024);
}

TEST_CASE("the device prunes all 65,536 quads as the CPU does") {
  if (no_gpu()) return;
  DenseSource source(1, 128, 2048);
  for (size_t i = 0; i < source.dense.codes.size(); ++i)
    source.dense.codes[i] = static_cast<uint8_t>(i % 2 ? i / 2 / 256 : i / 2 % 256);
  source.codes.upload(source.dense.codes.data(), source.dense.codes.size());
  const Shape one{1, 128, 2048};
  std::vector<uint8_t> want[3];
  uint8_t *to[3], *pointers[3];
  std::vector<Guarded> parts;
  for (int p = 0; p < 3; ++p) {
    want[p].resize(static_cast<size_t>(KMajorPlanes::part(p, one).bytes()));
    to[p] = want[p].data();
    parts.emplace_back(want[p].size());
    pointers[p] = parts.back().data();
  }
  twofour::prune_pack_reference<KMajorPlanes>(source.dense.rows(0), one, 0, to);
  const DeviceStream stream;
  prune_pack(source.device, SparseLayout::planes, {pointers[0], pointers[1], pointers[2]}, stream.get());
  stream.synchronize();
  for (size_t p = 0; p < 3; ++p) CHECK(parts[p].read() == want[p]);
}

TEST_CASE("the device packs g8 as the CPU does") {
  if (no_gpu()) return;
  using Layout = GateUpInterleaved8;
  for (const int64_t n : {16, 48, 128, 144, 272}) {
    for (const int64_t k : {16, 48, 64, 80, 1040}) {
      for (const bool gated : {false, true}) {
        CAPTURE(n);
        CAPTURE(k);
        CAPTURE(gated);
        const DenseSource source(2, n, k, k == 80 ? 1 : 0);
        const Shape one{1, n, k, gated};
        const auto weight_bytes = static_cast<size_t>(Layout::part(0, one).bytes());
        const auto scale_bytes = static_cast<size_t>(Layout::part(1, one).bytes());
        const Guarded weight(2 * weight_bytes), scale(2 * scale_bytes);
        const DeviceStream stream;
        pack_g8(source.device, gated, weight.data(), scale.data(), stream.get());
        stream.synchronize();
        std::vector<uint8_t> want_weight(2 * weight_bytes), want_scale(2 * scale_bytes);
        for (size_t e = 0; e < 2; ++e) {
          uint8_t* parts[] = {want_weight.data() + e * weight_bytes, want_scale.data() + e * scale_bytes};
          dense_pack<Layout>(source.dense.rows(static_cast<int64_t>(e)), one, 0, parts);
        }
        CHECK(weight.read() == want_weight);
        CHECK(scale.read() == want_scale);
      }
    }
  }
}

TEST_CASE("the device dequantizes as the CPU does") {
  if (no_gpu()) return;
  for (const int64_t n : {1, 7, 130}) {
    for (const int64_t k : {16, 48, 512}) {
      const DenseSource source(3, n, k, k == 48 ? 1 : 0);
      const DeviceMemory global(source.dense.global_scale);
      std::vector<float> row_scale;
      for (int64_t i = 0; i < 3 * n; ++i) row_scale.push_back(0.0007f * static_cast<float>(1 + i % 5));
      const DeviceMemory device_row_scale(row_scale);
      const auto count = static_cast<size_t>(3 * n * k);
      const Guarded bf16(2 * count), fp8(count);
      const DeviceStream stream;
      dequantize_to_bf16(source.device, global.as<float>(), bf16.data(), stream.get());
      dequantize_to_fp8(source.device, global.as<float>(), device_row_scale.as<float>(), fp8.data(),
                        stream.get());
      stream.synchronize();
      std::vector<uint8_t> want_bf16(2 * count), want_fp8(count);
      for (int64_t e = 0; e < 3; ++e) {
        const DenseRows rows = source.dense.rows(e);
        const float g = source.dense.global_scale[static_cast<size_t>(e)];
        dequantize_bf16({rows.codes, rows.scales, n * k / 16, 1}, g, want_bf16.data() + 2 * e * n * k);
        for (int64_t i = 0; i < n * k; ++i) {
          const unsigned code = rows.codes[i / 2] >> 4 * (i % 2) & 15u;
          const float weight = e2m1_to_float(code) * e4m3_to_float(rows.scales[i / 16]) * g;
          want_fp8[static_cast<size_t>(e * n * k + i)] =
              e4m3_from_float(weight / row_scale[static_cast<size_t>(e * n + i / k)]);
        }
      }
      CHECK(bf16.read() == want_bf16);
      CHECK(fp8.read() == want_fp8);
    }
  }
}

TEST_CASE("the device quantizes activations as the CPU does") {
  if (no_gpu()) return;
  for (const Float type : {Float::bf16, Float::f16, Float::f32}) {
    for (const int64_t k : {16, 48, 272}) {
      for (const bool tiles : {false, true}) {
        CAPTURE(k);
        CAPTURE(tiles);
        // Three matrices of 5, 0 and 130 rows.
        const std::vector<int32_t> row_begin = {0, 5, 5, 135}, tile_begin = {0, 128, 128};
        const int64_t m = 135;
        Activations x(static_cast<size_t>(m * k), type, 3);
        // Blocks of zeros, tiny ones, and a large one
        for (size_t i = 0; i < 16; ++i) x.values[i] = i % 2 ? -0.0f : 0.0f;
        for (size_t i = static_cast<size_t>(k); i < static_cast<size_t>(k) + 16; ++i) x.values[i] *= 0x1p-12f;
        x.values[static_cast<size_t>(2 * k)] = 60000.0f;
        x.device = Activations::to_device(x.values, type);
        x.values = Activations::from_bits(x.device.download<uint8_t>(), type);
        const std::vector<float> global = {0.003f, 1.0f, 0.0007f};
        const DeviceMemory device_global(global), device_rows(row_begin), device_tiles(tile_begin);

        const Shape tiled{1, 128 + 256, k};
        const Part part = GateUpInterleaved8::part(1, tiled);
        const auto groups = static_cast<size_t>(k / 16);
        const Guarded codes(static_cast<size_t>(m * k / 2));
        const Guarded scales(tiles ? static_cast<size_t>(part.bytes()) : static_cast<size_t>(m) * groups);
        QuantizeActivations a;
        a.x = x.device.as(), a.type = type, a.m = m, a.k = k;
        a.global_scale = device_global.as<float>();
        a.experts = 3, a.row_begin = device_rows.as<int32_t>(), a.tile_begin = device_tiles.as<int32_t>();
        a.order = tiles ? ScaleOrder::tiles : ScaleOrder::rows;
        a.codes = codes.data(), a.scales = scales.data();
        const DeviceStream stream;
        quantize_activations(a, stream.get());
        stream.synchronize();

        std::vector<uint8_t> want_codes(codes.bytes), want_scales(scales.bytes, 0xA5), row_scales(groups);
        for (int64_t row = 0; row < m; ++row) {
          const size_t e = row < 5 ? 0 : 2;
          quantize_nvfp4_row(x.values.data() + row * k, k, global[e], want_codes.data() + row * k / 2,
                             row_scales.data());
          for (size_t s = 0; s < groups; ++s) {
            size_t at = static_cast<size_t>(row) * groups + s;
            if (tiles) {
              const int64_t tile_row = tile_begin[e] + row - row_begin[e];
              const Stored place =
                  GateUpInterleaved8::place(tiled, {0, tile_row, static_cast<int64_t>(s), 8});
              at = static_cast<size_t>(place.at.row * part.cols + place.at.col);
            }
            want_scales[at] = row_scales[s];
          }
        }
        CHECK(codes.read() == want_codes);
        CHECK(scales.read() == want_scales);
      }
    }
  }
}

TEST_CASE("rows of activations are quantized under their weights") {
  if (no_gpu()) return;
  const int64_t tokens = 5, topk = 3, m = tokens * topk, k = 80;
  const Activations x(static_cast<size_t>(tokens * k), Float::bf16, 6);
  std::vector<float> weights;
  for (int64_t r = 0; r < m; ++r) weights.push_back(r == 4 ? 0.0f : 0.3f * static_cast<float>(r - 7));
  const float g = 0.002f;
  const DeviceMemory device_weights(weights), global(std::vector<float>{g});
  const Guarded codes(static_cast<size_t>(m * k / 2)), scales(static_cast<size_t>(m * k / 16));
  QuantizeActivations a;
  a.x = x.device.as(), a.m = m, a.k = k;
  a.rows_per_x = topk, a.row_weight = device_weights.as<float>();
  a.global_scale = global.as<float>();
  a.codes = codes.data(), a.scales = scales.data();
  const DeviceStream stream;
  quantize_activations(a, stream.get());
  stream.synchronize();
  std::vector<uint8_t> want_codes(codes.bytes), want_scales(scales.bytes);
  for (int64_t r = 0; r < m; ++r) {
    std::vector<float> row;
    for (int64_t i = 0; i < k; ++i)
      row.push_back(x.values[static_cast<size_t>(r / topk * k + i)] * weights[static_cast<size_t>(r)]);
    quantize_nvfp4_row(row.data(), k, g, want_codes.data() + r * k / 2, want_scales.data() + r * k / 16);
  }
  CHECK(codes.read() == want_codes);
  CHECK(scales.read() == want_scales);
  a.interleaved = true;
  CHECK_THROWS_AS(quantize_activations(a, stream.get()), Error);
  a.interleaved = false, a.m = m - 1;
  CHECK_THROWS_AS(quantize_activations(a, stream.get()), Error);
}

TEST_CASE("interleaved gate and up are quantized as their activation is") {
  if (no_gpu()) return;
  for (const float limit : {0.0f, 0.4f}) {
    const int64_t m = 37, k = 48;
    const Activations x(static_cast<size_t>(2 * m * k), Float::f32, 4);
    std::vector<float> active(static_cast<size_t>(m * k));
    for (int64_t i = 0; i < m * k; ++i) {
      const size_t at = static_cast<size_t>(i / 8 * 16 + i % 8);
      float gate = x.values[at], up = x.values[at + 8];
      if (limit > 0) gate = std::min(gate, limit), up = std::clamp(up, -limit, limit);
      active[static_cast<size_t>(i)] = gate / (1.0f + std::exp(-gate)) * up;
    }
    const DeviceMemory global(std::vector<float>{0.003f}), direct(active);
    DeviceMemory codes[2], scales[2];
    for (int i = 0; i < 2; ++i) {
      codes[i] = DeviceMemory(static_cast<size_t>(m * k / 2)),
      scales[i] = DeviceMemory(static_cast<size_t>(m * k / 16));
      QuantizeActivations a;
      a.x = i ? x.device.as() : direct.as(), a.type = Float::f32, a.m = m, a.k = k;
      a.global_scale = global.as<float>();
      a.interleaved = i == 1, a.limit = limit;
      a.codes = codes[i].as<uint8_t>(), a.scales = scales[i].as<uint8_t>();
      const DeviceStream stream;
      quantize_activations(a, stream.get());
      stream.synchronize();
    }
    // A last bit of exp decides a tie once in many.
    const auto differ = [](const DeviceMemory& a, const DeviceMemory& b) {
      const auto x0 = a.download<uint8_t>(), x1 = b.download<uint8_t>();
      return std::inner_product(x0.begin(), x0.end(), x1.begin(), 0, std::plus<>(), std::not_equal_to<>());
    };
    CHECK(differ(codes[0], codes[1]) <= 1);
    CHECK(differ(scales[0], scales[1]) <= 1);
  }
}

}  // namespace device_pack_test
