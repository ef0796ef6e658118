#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "kernels/device/stream.h"

/// Matrices in device memory, as checkpoints store them, times rows of float32. Functions work on the
/// caller's stream, wait for nothing, and throw Error with CUDA's message.

namespace twofour::cuda {

/// How the numbers of a matrix are stored.
enum class MatrixFormat : int32_t { bf16, f16, f32, fp8, mxfp4, nvfp4 };

/// A matrix [N, K] in device memory, K contiguous, on multiples of 16 bytes.
struct DeviceMatrix {
  MatrixFormat format = MatrixFormat::bf16;
  const void* weights = nullptr;  ///< numbers [N, K], or codes [N, K/2], the even k in the low nibble
  /// NVFP4: E4M3 [N, K/16]. MXFP4: E8M0 [N, K/32]. FP8: F32 for every scale_rows rows and scale_cols columns,
  /// [ceil(N / scale_rows), ceil(K / scale_cols)].
  const void* scales = nullptr;
  int64_t scale_rows = 1, scale_cols = 16;
  float global_scale = 1;       ///< multiplies every weight
  const float* bias = nullptr;  ///< [N], or nullptr
  int64_t n = 0, k = 0;
};

/// The product of gate and up: gate * sigmoid(slope * gate) * (up + offset). A limit above 0 first clamps
/// gate from above and up on both sides.
struct GateUnits {
  float slope = 1, offset = 0, limit = 0;
};

/// The input of products of single rows.
struct RowInput {
  const float* x = nullptr;     ///< [rows, K], or the gates
  int64_t stride = 0;           ///< from one row to the next; 0: all rows are the same
  const float* norm = nullptr;  ///< [K]: x / sqrt(mean of x^2 + epsilon) * norm is multiplied
  double epsilon = 0;
  const float* more = nullptr;  ///< [K], added to x first; or nullptr
  float* sum = nullptr;         ///< [K], receives x + more, not the memory of x; or nullptr
  const float* up = nullptr;    ///< [rows, K], with the stride of x; gated up is multiplied
  GateUnits gate{};
};

/// The output of such products.
struct RowOutput {
  float* out = nullptr;  ///< [rows, N of all matrices]
  bool adds = false;     ///< results are added to `out`
};

/// The most matrices in one call.
inline constexpr int kMostMatrices = 4;

/// One row times matrices of one K, whose results follow each other: bandwidth-bound, exact products of
/// decoded weights, sums in float32 in an order that depends on K alone.
void multiply_row(std::span<const DeviceMatrix> matrices, const RowInput& in, const RowOutput& to,
                  Stream stream);

/// The same for `rows` rows, each with the matrices of one expert: table [E, count] in device memory, ids
/// [rows]. The matrices of an expert have N rows together. An id outside of [0, E) leaves its output row
/// unchanged.
struct ExpertMatrices {
  const DeviceMatrix* table = nullptr;
  int count = 1;
  int64_t e = 0, n = 0, k = 0;
  std::optional<MatrixFormat> format{};  ///< the format of all; empty: several formats
};
void multiply_expert_rows(const ExpertMatrices& experts, const int32_t* ids, int64_t rows, const RowInput& in,
                          const RowOutput& to, Stream stream);

/// Rows `ids` of a matrix in float32, out [m, K]. Ids must be rows.
void take_rows(const DeviceMatrix& matrix, const int32_t* ids, int64_t m, float* out, Stream stream);

/// x as sums of two BF16 numbers, high and low [count]; the error is at most 2^-17 of each number.
void split_floats(const float* x, int64_t count, void* high, void* low, Stream stream);

/// Rows [n0, n0 + rows) of a matrix without its global scale, as the same sums: high and low [rows, K]. BF16,
/// MXFP4 and NVFP4 need no low numbers; F16 is exact with them. nullptr: no low numbers.
void expand_rows(const DeviceMatrix& matrix, int64_t n0, int64_t rows, void* high, void* low, Stream stream);
constexpr bool is_exact_in_bf16(MatrixFormat format) {
  return format == MatrixFormat::bf16 || format == MatrixFormat::mxfp4 || format == MatrixFormat::nvfp4;
}

/// out[i, j] += bias[j] for `m` rows, `stride` floats apart.
void add_bias(float* out, int64_t m, int64_t n, int64_t stride, const float* bias, Stream stream);

}  // namespace twofour::cuda
