#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "kernels/device/stream.h"

/// Matrices of a checkpoint in device memory, as it stores them, times rows of float32. Functions work on the
/// caller's stream, wait for nothing, and throw Error with CUDA's words.

namespace twofour::cuda {

/// How the numbers of a matrix are stored.
enum class MatrixFormat : int32_t { bf16, f16, f32, fp8, mxfp4, nvfp4 };

/// A matrix [N, K] in device memory, K contiguous, on multiples of 16 bytes.
struct DeviceMatrix {
  MatrixFormat format = MatrixFormat::bf16;
  const void* weights = nullptr;  ///< numbers [N, K], or codes [N, K/2], the even k in the low nibble
  /// Of NVFP4 E4M3 [N, K/16], of MXFP4 E8M0 [N, K/32], of FP8 F32 for every scale_rows rows and scale_cols
  /// columns, [ceil(N / scale_rows), ceil(K / scale_cols)].
  const void* scales = nullptr;
  int64_t scale_rows = 1, scale_cols = 16;
  float global_scale = 1;       ///< multiplies every weight
  const float* bias = nullptr;  ///< [N], or nullptr
  int64_t n = 0, k = 0;
};

/// What a gate does to its up: gate * sigmoid(slope * gate) * (up + offset), with a limit above 0 gate at
/// most the limit and up within it first.
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
  float* sum = nullptr;         ///< [K], takes x + more, elsewhere than x; or nullptr
  const float* up = nullptr;    ///< [rows, K], as far apart as x: what the gates make of it is multiplied
  GateUnits gate{};
};

/// Where such products go.
struct RowOutput {
  float* out = nullptr;  ///< [rows, N of all matrices]
  bool adds = false;     ///< to what is there
};

/// At most so many matrices in one call.
inline constexpr int kMostMatrices = 4;

/// One row times matrices of one K, whose results follow each other: bandwidth-bound, exact products of
/// decoded weights, sums in float32 in an order that depends on K alone.
void multiply_row(std::span<const DeviceMatrix> matrices, const RowInput& in, const RowOutput& to,
                  Stream stream);

/// The same of `rows` rows, each with the matrices of an expert: table [E, count] in device memory, all of
/// an expert's with N rows together, ids [rows]. Ids outside of [0, E) leave their row alone.
struct ExpertMatrices {
  const DeviceMatrix* table = nullptr;
  int count = 1;
  int64_t e = 0, n = 0, k = 0;
  std::optional<MatrixFormat> format{};  ///< of all; nothing: of several
};
void multiply_expert_rows(const ExpertMatrices& experts, const int32_t* ids, int64_t rows, const RowInput& in,
                          const RowOutput& to, Stream stream);

/// Rows `ids` of a matrix in float32, out [m, K]. Ids must be rows.
void take_rows(const DeviceMatrix& matrix, const int32_t* ids, int64_t m, float* out, Stream stream);

/// x as sums of two BF16 numbers, which leaves 2^-17 of each number at most: high and low [count].
void split_floats(const float* x, int64_t count, void* high, void* low, Stream stream);

/// Rows [n0, n0 + rows) of a matrix, its global scale left out, likewise: high and low [rows, K]. BF16, MXFP4
/// and NVFP4 need no low ones, F16 is exact with them. nullptr: no low ones.
void expand_rows(const DeviceMatrix& matrix, int64_t n0, int64_t rows, void* high, void* low, Stream stream);
constexpr bool is_exact_in_bf16(MatrixFormat format) {
  return format == MatrixFormat::bf16 || format == MatrixFormat::mxfp4 || format == MatrixFormat::nvfp4;
}

/// out[i, j] += bias[j] of `m` rows, `stride` floats apart.
void add_bias(float* out, int64_t m, int64_t n, int64_t stride, const float* bias, Stream stream);

}  // namespace twofour::cuda
