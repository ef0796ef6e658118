#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/device/device_memory.h"
#include "kernels/floats/device_gemm.h"

namespace twofour {

/// Sums of products of rows, added up on the CUDA device. Each number is the sum of two BF16 numbers, with an
/// error of at most 2^-17 of it; sums are float32. Rows are in host memory. For one thread.
class DeviceSums {
 public:
  /// `sums` [K, K] += x' x of rows x [m, K]; `sums` is made with zeros if it is empty.
  void add_products(std::span<const float> x, int64_t k, cuda::DeviceMemory& sums);
  /// `sums` [N, K] += a' x of rows a [m, N] and x [m, K]; likewise.
  void add_cross_products(std::span<const float> a, int64_t n, std::span<const float> x, int64_t k,
                          cuda::DeviceMemory& sums);
  /// out [m, N] = x w' of rows x [m, K] and w [N, K].
  void multiply(std::span<const float> x, std::span<const float> w, int64_t n, int64_t k,
                std::span<float> out);
  /// Copies sums to the host, and frees the device's.
  std::vector<float> take(cuda::DeviceMemory& sums) const;

 private:
  const float* bring(std::span<const float> rows, cuda::DeviceMemory& to) const;

  cuda::DeviceStream stream_;
  cuda::MatrixProducts products_;
  cuda::DeviceMemory left_, right_, out_;
};

}  // namespace twofour
