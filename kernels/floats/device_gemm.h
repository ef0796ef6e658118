#pragma once
#include <cstdint>
#include <memory>

#include "kernels/device/device_memory.h"
#include "kernels/device/stream.h"
#include "kernels/floats/device_matrix.h"

namespace twofour::cuda {

/// A matrix of BF16 numbers [rows, K]. Its rows are `stride` numbers apart. It may be stored transposed, as
/// [K, rows].
struct Bf16Plane {
  const void* data = nullptr;
  int64_t stride = 0;
  bool turned = false;
};

/// A product of planes: out[i, j] = scale * sum over k of a[i, k] b[j, k]. The result is added to `out` if
/// `adds` is true.
struct PlaneProduct {
  Bf16Plane a, b;
  int64_t m = 0, n = 0, k = 0;
  float* out = nullptr;
  int64_t stride = 0;  ///< floats from one row of out to the next
  float scale = 1;
  bool adds = false;
};

/// Multiplies only on CUDA cores, in blocks of 64 x 64 results.
void multiply_planes_plainly(const PlaneProduct& product, Stream stream);

/// Products of planes through cuBLASLt, if the machine has it.
class LibraryProducts {
 public:
  LibraryProducts();
  ~LibraryProducts();
  LibraryProducts(const LibraryProducts&) = delete;
  LibraryProducts& operator=(const LibraryProducts&) = delete;
  /// Multiplies with float32 sums. Returns false if there is no cuBLASLt, or if it does not support the
  /// shape.
  bool multiply(const PlaneProduct& product, Stream stream);

 private:
  struct Plans;
  std::unique_ptr<Plans> plans_;
};

/// Multiplies many rows by matrices. Each number of the rows and weights is the sum of two BF16 numbers
/// (error at most 2^-17 of the number) or of three (2^-25). Tensor cores multiply these planes with float32
/// sums; products as small as the error are left out. The object holds the memory for this. Use it with one
/// stream at a time.
class MatrixProducts {
 public:
  /// The number of bytes of a plane of weights that are decoded at a time.
  static constexpr int64_t kChunkBytes = int64_t{64} << 20;

  /// Sets the rows for multiply(), x [m, K] in device memory, as sums of two or three planes. x may change
  /// after the call.
  void set_rows(const float* x, int64_t m, int64_t k, Stream stream, int planes = 2);
  /// Computes out = x w' + bias. Rows of out are `stride` floats apart. The result is added to `out` if
  /// `adds` is true.
  void multiply(const DeviceMatrix& w, float* out, int64_t stride, bool adds, Stream stream);
  /// Multiplies by several matrices, whose results follow each other in a row. Matrices that are adjacent in
  /// memory are multiplied as one.
  void multiply(std::span<const DeviceMatrix> matrices, float* out, int64_t stride, Stream stream);
  /// Computes sums += x' x, [K, K], for the rows that were set.
  void add_products(float* sums, Stream stream);
  /// Computes sums += a' x, [N, K], for `a` [m, N] and the rows that were set.
  void add_cross_products(const float* a, int64_t n, float* sums, Stream stream);

 private:
  void product(const PlaneProduct& p, Stream stream);
  static void* room(DeviceMemory& memory, int64_t numbers);

  LibraryProducts library_;
  DeviceMemory rows_[3], weights_[3], others_[2];
  int64_t m_ = 0, k_ = 0;
  int planes_ = 2;
};

}  // namespace twofour::cuda
