#pragma once
#include <cstdint>
#include <memory>

#include "kernels/device/device_memory.h"
#include "kernels/device/stream.h"
#include "kernels/floats/device_matrix.h"

namespace twofour::cuda {

/// BF16 numbers [rows, K], rows `stride` numbers apart, or turned: [K, rows].
struct Bf16Plane {
  const void* data = nullptr;
  int64_t stride = 0;
  bool turned = false;
};

/// A product of planes: out[i, j] = scale * sum over k of a[i, k] b[j, k], with `adds` added to what is
/// there.
struct PlaneProduct {
  Bf16Plane a, b;
  int64_t m = 0, n = 0, k = 0;
  float* out = nullptr;
  int64_t stride = 0;  ///< of rows of out
  float scale = 1;
  bool adds = false;
};

/// By CUDA cores alone, 64 x 64 results a block.
void multiply_planes_plainly(const PlaneProduct& product, Stream stream);

/// Products of planes by cuBLASLt, where the machine has it.
class LibraryProducts {
 public:
  LibraryProducts();
  ~LibraryProducts();
  LibraryProducts(const LibraryProducts&) = delete;
  LibraryProducts& operator=(const LibraryProducts&) = delete;
  /// Whether it could: not where there is no cuBLASLt or it does not take the shape. Sums in float32.
  bool multiply(const PlaneProduct& product, Stream stream);

 private:
  struct Plans;
  std::unique_ptr<Plans> plans_;
};

/// Many rows times matrices: rows and weights as sums of two BF16 numbers each (2^-17 of a number is lost at
/// most), their products without that of both low ones on tensor cores, with float32 sums. Holds the memory
/// that this takes; for one stream at a time.
class MatrixProducts {
 public:
  /// Weights that are decoded at a time, bytes of a plane.
  static constexpr int64_t kChunkBytes = int64_t{64} << 20;

  /// The rows that multiply() takes from now on: x [m, K] in device memory, which may change afterwards.
  void set_rows(const float* x, int64_t m, int64_t k, Stream stream);
  /// out = x w' + bias, rows of out `stride` floats apart, or added to what is there.
  void multiply(const DeviceMatrix& w, float* out, int64_t stride, bool adds, Stream stream);
  /// The same of matrices whose results follow each other; those that lie so in memory, too, are one product.
  void multiply(std::span<const DeviceMatrix> matrices, float* out, int64_t stride, Stream stream);
  /// sums += x' x of these rows, [K, K].
  void add_products(float* sums, Stream stream);
  /// sums += a' x, [N, K], of `a` [m, N] and these rows.
  void add_cross_products(const float* a, int64_t n, float* sums, Stream stream);

 private:
  void product(const PlaneProduct& p, Stream stream);
  static void* room(DeviceMemory& memory, int64_t numbers);

  LibraryProducts library_;
  DeviceMemory rows_[2], weights_[2], others_[2];
  int64_t m_ = 0, k_ = 0;
};

}  // namespace twofour::cuda
