#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/device/device_memory.h"
#include "kernels/floats/device_gemm.h"

namespace twofour {

/// Sums of products of rows that the CUDA device adds up: each number as the sum of two in BF16, which leaves
/// 2^-17 of it at most; sums in float32. Rows are in host memory. For one thread.
class DeviceSums {
 public:
  /// `sums` [K, K] += x' x, rows x [m, K]; made of zeros where it is nothing yet.
  void add_products(std::span<const float> x, int64_t k, cuda::DeviceMemory& sums);
  /// `sums` [N, K] += a' x, rows a [m, N] and x [m, K]; likewise.
  void add_cross_products(std::span<const float> a, int64_t n, std::span<const float> x, int64_t k,
                          cuda::DeviceMemory& sums);
  /// out [m, N] = x w' of rows x [m, K] and w [N, K].
  void multiply(std::span<const float> x, std::span<const float> w, int64_t n, int64_t k,
                std::span<float> out);
  /// Brings sums to the host, and lets go of the device's.
  std::vector<float> take(cuda::DeviceMemory& sums) const;

 private:
  const float* bring(std::span<const float> rows, cuda::DeviceMemory& to) const;

  cuda::DeviceStream stream_;
  cuda::MatrixProducts products_;
  cuda::DeviceMemory left_, right_, out_;
};

}  // namespace twofour
