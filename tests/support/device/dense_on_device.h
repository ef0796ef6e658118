#pragma once
#include "kernels/multiply/dense_multiply.h"
#include "kernels/pack/dense_pack.h"
#include "tests/support/device/device_experts.h"

namespace twofour {

/// Weights on the device as a checkpoint or g8 stores them.
struct DenseOnDevice {
  cuda::DeviceMemory codes, scales, global_scale;
  cuda::DenseWeights device;

  DenseOnDevice(const DenseExperts& dense, bool g8, bool gated) : global_scale(dense.global_scale) {
    if (g8) {
      using Layout = GateUpInterleaved8;
      const Shape one{1, dense.n, dense.k, gated};
      const auto code_bytes = static_cast<size_t>(Layout::part(0, one).bytes());
      const auto scale_bytes = static_cast<size_t>(Layout::part(1, one).bytes());
      std::vector<uint8_t> packed(static_cast<size_t>(dense.e) * code_bytes),
          packed_scales(static_cast<size_t>(dense.e) * scale_bytes);
      for (int64_t e = 0; e < dense.e; ++e) {
        uint8_t* parts[] = {packed.data() + static_cast<size_t>(e) * code_bytes,
                            packed_scales.data() + static_cast<size_t>(e) * scale_bytes};
        dense_pack<Layout>(dense.rows(e), one, 0, parts);
      }
      codes = cuda::DeviceMemory(packed), scales = cuda::DeviceMemory(packed_scales);
    } else {
      codes = cuda::DeviceMemory(dense.codes), scales = cuda::DeviceMemory(dense.scales);
    }
    device.layout = g8 ? cuda::DenseLayout::g8 : cuda::DenseLayout::rows;
    device.codes = codes.as<uint8_t>(), device.scales = scales.as<uint8_t>();
    device.e = dense.e, device.n = dense.n, device.k = dense.k;
    device.gated = gated;
    device.global_scale = global_scale.as<float>();
  }
};

inline double weight_of(const DenseExperts& d, int64_t e, int64_t n, int64_t k) {
  const DenseRows rows = d.rows(e);
  return weight_of(rows.codes, rows.scales, n * d.k + k, d.global_scale[static_cast<size_t>(e)]);
}

/// Dequantized rows of dense experts. Keep the experts.
inline WeightRows rows_of(const DenseExperts& dense) {
  auto expert = std::make_shared<int64_t>(0);
  return {dense.e, dense.n, dense.k, [expert](int64_t e) { *expert = e; },
          [&dense, expert](int64_t n, std::span<double> out) {
            for (int64_t k = 0; k < dense.k; ++k)
              out[static_cast<size_t>(k)] = weight_of(dense, *expert, n, k);
          }};
}

}  // namespace twofour
