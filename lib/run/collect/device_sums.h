#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/device/device_memory.h"
#include "kernels/floats/device_gemm.h"

namespace twofour {

/// Sums of products of rows, computed on the CUDA device. Each number is represented as the sum of two BF16
/// numbers, with a relative error of at most 2^-17. Sums are float32. Rows are in host memory. Only one
/// thread may use an object.
class DeviceSums {
 public:
  /// `sums` [K, K] += x' x for rows x [m, K]. If `sums` is empty, it is allocated and filled with zeros
  /// first.
  void add_products(std::span<const float> x, int64_t k, cuda::DeviceMemory& sums);
  /// `sums` [N, K] += a' x for rows a [m, N] and x [m, K]. An empty `sums` is treated in the same way.
  void add_cross_products(std::span<const float> a, int64_t n, std::span<const float> x, int64_t k,
                          cuda::DeviceMemory& sums);
  /// out [m, N] = x w' for rows x [m, K] and w [N, K].
  void multiply(std::span<const float> x, std::span<const float> w, int64_t n, int64_t k,
                std::span<float> out);
  /// Copies sums to the host and frees their device memory.
  std::vector<float> take(cuda::DeviceMemory& sums) const;

 private:
  const float* bring(std::span<const float> rows, cuda::DeviceMemory& to) const;

  cuda::DeviceStream stream_;
  cuda::MatrixProducts products_;
  cuda::DeviceMemory left_, right_, out_;
};

}  // namespace twofour
