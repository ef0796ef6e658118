#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/device/device_memory.h"
#include "kernels/floats/device_gemm.h"
#include "lib/run/decoder/float_array.h"

namespace twofour {

/// Sums of products of rows, computed on the CUDA device. Each number is represented as the sum of two BF16
/// numbers, with a relative error of at most 2^-17. Sums are float32. Rows are in device memory, and must be
/// complete when they are given. Work is put on one stream. Only one thread may use an object.
class DeviceSums {
 public:
  const cuda::DeviceStream& stream() const { return stream_; }
  /// Waits for the work so far.
  void wait() const { stream_.synchronize(); }

  /// Sets the rows x [m, K] of the next sums and products. They may change after the next wait().
  void set_rows(const float* x, int64_t m, int64_t k);
  /// `sums` [K, K] += x' x. If `sums` is empty, it is allocated and filled with zeros first.
  void add_products(cuda::DeviceMemory& sums);
  /// `sums` [N, K] += a' x for rows a [m, N]. An empty `sums` is treated in the same way.
  void add_cross_products(const float* a, int64_t n, cuda::DeviceMemory& sums);
  /// out [m, N] = x w' for w [N, K], both in device memory.
  void multiply(const float* w, int64_t n, float* out);
  /// `most` [1] = the larger of itself and of |x| for `count` numbers. An empty `most` is 0.
  void find_largest(const float* x, int64_t count, cuda::DeviceMemory& most);

  /// out [m, N] = x w' for rows x [m, K] and w [N, K] in host memory.
  void multiply(std::span<const float> x, std::span<const float> w, int64_t n, int64_t k,
                std::span<float> out);
  /// Copies rows to the device. The copy is valid until the next call.
  const float* bring(std::span<const float> rows);
  /// Copies sums to the host and frees their device memory.
  std::vector<float> take(cuda::DeviceMemory& sums) const;

 private:
  cuda::DeviceStream stream_;
  cuda::MatrixProducts products_;
  int64_t m_ = 0, k_ = 0;
  FloatArray brought_{&stream_}, weights_{&stream_}, out_{&stream_};
};

}  // namespace twofour
