#pragma once
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "formats/half.h"
#include "formats/layouts/layout_ops.h"
#include "formats/layouts/layouts.h"
#include "kernels/device/device_memory.h"
#include "kernels/moe/moe.h"
#include "kernels/multiply/sparse_multiply.h"
#include "kernels/pack/prune_pack.h"
#include "tests/support/weights/nvfp4_values.h"

/// Random experts on both sides, and what their products must be.

namespace twofour {

struct DenseExperts {
  int64_t e, n, k;
  std::vector<uint8_t> codes, scales;  ///< [E, N, K/2], [E, N, K/16]
  std::vector<float> global_scale;     ///< [E]

  DenseExperts(int64_t experts, int64_t rows, int64_t cols, unsigned seed)
      : e(experts),
        n(rows),
        k(cols),
        codes(static_cast<size_t>(e * n * k / 2)),
        scales(static_cast<size_t>(e * n * k / 16)),
        global_scale(static_cast<size_t>(e)) {
    std::mt19937 random(seed);
    for (uint8_t& byte : codes) byte = static_cast<uint8_t>(random());
    for (uint8_t& byte : scales) byte = random_block_scale(random);
    for (float& g : global_scale) g = random_global_scale(random);
  }

  DenseRows rows(int64_t expert) const {
    return {codes.data() + expert * n * k / 2, scales.data() + expert * n * k / 16, k / 2, k / 16, n, k};
  }
};

template <class Layout>
struct SparseOnDevice {
  static constexpr bool is_planes = Layout::part_count == 3;
  Shape shape;  ///< of all
  std::vector<std::vector<uint8_t>> host;
  std::vector<cuda::DeviceMemory> device;
  std::vector<float> global_scale;
  cuda::DeviceMemory device_scale;

  explicit SparseOnDevice(const DenseExperts& dense)
      : shape{dense.e, dense.n, dense.k}, global_scale(dense.global_scale), device_scale(dense.global_scale) {
    const Shape one{1, dense.n, dense.k};
    for (int p = 0; p < Layout::part_count; ++p)
      host.emplace_back(static_cast<size_t>(dense.e * Layout::part(p, one).bytes()));
    for (int64_t e = 0; e < dense.e; ++e) {
      const auto to = pointers(e);
      prune_pack<Layout>(dense.rows(e), one, 0, to);
    }
    for (const auto& part : host) device.emplace_back(part);
  }

  std::vector<uint8_t*> pointers(int64_t e) {
    std::vector<uint8_t*> to;
    for (int p = 0; p < Layout::part_count; ++p)
      to.push_back(host[static_cast<size_t>(p)].data() + e * Layout::part(p, {1, shape.n, shape.k}).bytes());
    return to;
  }

  cuda::SparseExperts experts() const {
    cuda::SparseExperts w;
    w.layout = is_planes ? cuda::SparseLayout::planes : cuda::SparseLayout::packed;
    for (size_t p = 0; p < device.size(); ++p) w.parts[p] = device[p].template as<uint8_t>();
    w.e = shape.e, w.n = shape.n, w.k = shape.k;
    w.global_scale = device_scale.as<float>();
    return w;
  }

  /// Rows dequantized through the layout's map. Holds a copy of nothing: keep this object.
  WeightRows rows() const {
    auto expert = std::make_shared<int64_t>(0);
    return {
        shape.e, shape.n, shape.k, [expert](int64_t e) { *expert = e; },
        [this, expert](int64_t n, std::span<double> out) {
          const Shape one{1, shape.n, shape.k};
          std::vector<std::span<const uint8_t>> parts;
          for (int p = 0; p < Layout::part_count; ++p) {
            const auto bytes = static_cast<size_t>(Layout::part(p, one).bytes());
            parts.push_back(
                std::span(host[static_cast<size_t>(p)]).subspan(static_cast<size_t>(*expert) * bytes, bytes));
          }
          for (int64_t group = 0; group < shape.groups(); ++group) {
            const DenseGroup dense = expand(unpack_atom<Layout>(one, n, group, parts));
            for (int64_t i = 0; i < kGroup; ++i)
              out[static_cast<size_t>(group * kGroup + i)] =
                  weight_of(dense, i, global_scale[static_cast<size_t>(*expert)]);
          }
        }};
  }
};

/// Numbers that `type` represents, as float32 and as the device reads them.
struct Activations {
  std::vector<float> values;
  cuda::DeviceMemory device;

  Activations(size_t count, cuda::Float type, unsigned seed, float magnitude = 1.0f) : values(count) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0.0f, magnitude);
    for (float& x : values) x = normal(random);
    device = to_device(values, type);
    values = from_bits(device.download<uint8_t>(), type);
  }

  static cuda::DeviceMemory to_device(const std::vector<float>& values, cuda::Float type) {
    return cuda::DeviceMemory(to_bits(values, type));
  }

  static std::vector<uint8_t> to_bits(const std::vector<float>& values, cuda::Float type) {
    std::vector<uint8_t> bytes(values.size() * static_cast<size_t>(cuda::size_of(type)));
    for (size_t i = 0; i < values.size(); ++i) {
      if (type == cuda::Float::f32) {
        std::memcpy(bytes.data() + 4 * i, &values[i], 4);
      } else {
        const uint16_t bits =
            type == cuda::Float::bf16 ? bf16_from_float(values[i]) : fp16_from_float(values[i]);
        std::memcpy(bytes.data() + 2 * i, &bits, 2);
      }
    }
    return bytes;
  }

  static std::vector<float> from_bits(const std::vector<uint8_t>& bytes, cuda::Float type) {
    std::vector<float> values(bytes.size() / static_cast<size_t>(cuda::size_of(type)));
    for (size_t i = 0; i < values.size(); ++i) {
      if (type == cuda::Float::f32) {
        std::memcpy(&values[i], bytes.data() + 4 * i, 4);
      } else {
        uint16_t bits;
        std::memcpy(&bits, bytes.data() + 2 * i, 2);
        values[i] = type == cuda::Float::bf16 ? bf16_to_float(bits) : fp16_to_float(bits);
      }
    }
    return values;
  }
};

/// |got - want| / |want| over all numbers; NaN where one is.
inline double relative_error(std::span<const float> got, std::span<const double> want) {
  REQUIRE(got.size() == want.size());
  double difference = 0, norm = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double d = static_cast<double>(got[i]) - want[i];
    difference += d * d;
    norm += want[i] * want[i];
  }
  return norm == 0 ? std::sqrt(difference) : std::sqrt(difference / norm);
}

/// Largest relative error of numbers rounded to `type` (half a unit in the last place) after `roundings` to
/// FP16 on the way, with room for float32 sums in another order. A norm may be that of a single number, so
/// the largest error counts, not the mean.
inline double tolerance(cuda::Float type, int roundings) {
  const double rounding = type == cuda::Float::bf16 ? 0x1p-8 : type == cuda::Float::f16 ? 0x1p-11 : 0.0;
  return 2e-6 + rounding + roundings * 0x1p-11;
}

}  // namespace twofour
