#pragma once
#include <cstdint>
#include <memory>

#include "kernels/device/device_memory.h"
#include "kernels/device/stream.h"
#include "kernels/floats/device_matrix.h"

namespace twofour::cuda {

/// BF16 numbers [rows, K], rows `stride` numbers apart, or transposed: [K, rows].
struct Bf16Plane {
  const void* data = nullptr;
  int64_t stride = 0;
  bool turned = false;
};

/// A product of planes: out[i, j] = scale * sum over k of a[i, k] b[j, k], added to `out` if `adds`.
struct PlaneProduct {
  Bf16Plane a, b;
  int64_t m = 0, n = 0, k = 0;
  float* out = nullptr;
  int64_t stride = 0;  ///< of rows of out
  float scale = 1;
  bool adds = false;
};

/// Multiplies on CUDA cores alone, 64 x 64 results in each block.
void multiply_planes_plainly(const PlaneProduct& product, Stream stream);

/// Products of planes by cuBLASLt, if the machine has it.
class LibraryProducts {
 public:
  LibraryProducts();
  ~LibraryProducts();
  LibraryProducts(const LibraryProducts&) = delete;
  LibraryProducts& operator=(const LibraryProducts&) = delete;
  /// Multiplies with float32 sums. Returns false if there is no cuBLASLt or it does not take the shape.
  bool multiply(const PlaneProduct& product, Stream stream);

 private:
  struct Plans;
  std::unique_ptr<Plans> plans_;
};

/// Many rows times matrices. Rows and weights are sums of two BF16 numbers (error at most 2^-17 of a number),
/// which tensor cores multiply with float32 sums; the product of both low numbers is left out. Holds the
/// memory for this; for one stream at a time.
class MatrixProducts {
 public:
  /// Bytes of a plane of weights that are decoded at a time.
  static constexpr int64_t kChunkBytes = int64_t{64} << 20;

  /// Sets the rows for multiply(): x [m, K] in device memory, which may change afterwards.
  void set_rows(const float* x, int64_t m, int64_t k, Stream stream);
  /// out = x w' + bias, rows of out `stride` floats apart, added to `out` if `adds`.
  void multiply(const DeviceMatrix& w, float* out, int64_t stride, bool adds, Stream stream);
  /// The same for matrices whose results follow each other; matrices that also follow each other in memory
  /// are one product.
  void multiply(std::span<const DeviceMatrix> matrices, float* out, int64_t stride, Stream stream);
  /// sums += x' x of these rows, [K, K].
  void add_products(float* sums, Stream stream);
  /// sums += a' x, [N, K], for `a` [m, N] and these rows.
  void add_cross_products(const float* a, int64_t n, float* sums, Stream stream);

 private:
  void product(const PlaneProduct& p, Stream stream);
  static void* room(DeviceMemory& memory, int64_t numbers);

  LibraryProducts library_;
  DeviceMemory rows_[2], weights_[2], others_[2];
  int64_t m_ = 0, k_ = 0;
};

}  // namespace twofour::cuda
