#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#include "kernels/moe/moe_cpu.h"
#include "kernels/multiply/dense_multiply.h"
#include "kernels/multiply/sparse_multiply.h"
#include "lib/run/runtime/layer.h"

namespace twofour {

/// The description of a stack of matrices [E, N, K]. A linear is a stack with E = 1.
struct MatrixInfo {
  std::string name;    ///< for messages: "model.layers.0.mlp.w13"
  std::string layout;  ///< name of the layout, as "v7"
  Shape shape{};
};

/// Throws Error if the layout is unknown or does not support the sizes, if parts are missing, and on stored
/// bytes that kernels must not read.
void check_placed(const MatrixInfo& info, const PlacedMatrix& at, Device device);

/// A stack of matrices in a layout on a device. The caller owns the memory.
class RuntimeMatrix {
 public:
  /// `cuda_device` is the index of the device, or -1 for the current device. Throws Error like
  /// check_placed().
  static RuntimeMatrix over(MatrixInfo info, const PlacedMatrix& at, Device device, int cuda_device = -1);

  const MatrixInfo& info() const { return info_; }
  /// The bytes of workspace for `rows` rows. 0 on the CPU.
  size_t workspace_bytes(int64_t rows) const;
  /// Computes out[r] = w[ids[r]] x[r]. x is [rows, K] and out is [rows, N], both of `type`. All arrays are in
  /// memory of the device. On CUDA, the rows of ids out of range do not change. Otherwise it works like
  /// RuntimeLayer::forward().
  void multiply(int64_t rows, cuda::Float type, const void* x, const int32_t* ids, void* out, void* workspace,
                size_t bytes, cuda::Stream stream = nullptr) const;

 private:
  cuda::ExpertRows rows_of(int64_t rows, cuda::Float type) const;

  MatrixInfo info_;
  Device device_ = Device::cpu;
  int cuda_device_ = -1;
  bool is_dense_ = false;
  PlacedMatrix at_;
  cuda::SparseExperts sparse_;
  cuda::DenseWeights dense_;
};

}  // namespace twofour
