#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "kernels/device/stream.h"

/// Products of rows of float32 with matrices in device memory, which are stored as in checkpoints. Functions
/// only put work on the caller's stream, and do not wait. They throw Error with CUDA's message.

namespace twofour::cuda {

/// The format in which the numbers of a matrix are stored.
enum class MatrixFormat : int32_t { bf16, f16, f32, fp8, mxfp4, nvfp4 };

/// A matrix [N, K] in device memory, with K contiguous. Its arrays are aligned to 16 bytes.
struct DeviceMatrix {
  MatrixFormat format = MatrixFormat::bf16;
  const void* weights = nullptr;  ///< numbers [N, K], or codes [N, K/2], the even k in the low nibble
  /// The scales of the weights. NVFP4: E4M3 [N, K/16]. MXFP4: E8M0 [N, K/32]. FP8: F32 [ceil(N / scale_rows),
  /// ceil(K / scale_cols)], one scale per scale_rows rows and scale_cols columns.
  const void* scales = nullptr;
  int64_t scale_rows = 1, scale_cols = 16;
  float global_scale = 1;       ///< a factor of all weights
  const float* bias = nullptr;  ///< [N]; may be null
  int64_t n = 0, k = 0;
};

/// The rule for gate times up: gate * sigmoid(slope * (gate + cubic * gate^3)) * (up + offset). If the limit
/// is above 0, gate is first clamped from above, and up from both sides.
struct GateUnits {
  float slope = 1, offset = 0, limit = 0;
  float cubic = 0;  ///< kGeluCubic with kGeluSlope as slope makes gelu, with tanh as its approximation
};
/// gelu(x) = x (1 + tanh(u)) / 2 for u = sqrt(2 / pi) (x + 0.044715 x^3). (1 + tanh(u)) / 2 = sigmoid(2 u).
inline constexpr float kGeluSlope = 1.5957691216f, kGeluCubic = 0.044715f;

/// The input of products of single rows.
struct RowInput {
  const float* x = nullptr;     ///< [rows, K]; the gates if `up` is given
  int64_t stride = 0;           ///< floats from one row to the next; 0 if all rows are the same
  const float* norm = nullptr;  ///< [K]; then x / sqrt(mean of x^2 + epsilon) * norm is multiplied
  double epsilon = 0;
  const float* more = nullptr;  ///< [K] added to x before anything else; may be null
  float* sum = nullptr;         ///< [K] receives x + more; must not be the memory of x; may be null
  const float* up = nullptr;    ///< [rows, K] with the stride of x; then gated up is multiplied
  GateUnits gate{};
};

/// The output of products of single rows.
struct RowOutput {
  float* out = nullptr;  ///< [rows, N of all matrices]
  bool adds = false;     ///< true if results are added to `out`
};

/// The largest number of matrices in one call.
inline constexpr int kMostMatrices = 5;

/// Multiplies one row by matrices with the same K. Their results follow each other in the output. The
/// operation is limited by bandwidth. Products of decoded weights are exact, and are summed in float32 in an
/// order that depends only on K.
void multiply_row(std::span<const DeviceMatrix> matrices, const RowInput& in, const RowOutput& to,
                  Stream stream);

/// Multiplies `rows` rows, each by the matrices of one expert. The table of matrices [E, count] is in device
/// memory, and ids are [rows]. N is the total number of rows of an expert's matrices. If an id is outside of
/// [0, E), its output row is not changed.
struct ExpertMatrices {
  const DeviceMatrix* table = nullptr;
  int count = 1;
  int64_t e = 0, n = 0, k = 0;
  std::optional<MatrixFormat> format{};  ///< the format of all matrices; empty if they have several formats
  int64_t scale_cols = 0;                ///< width of all FP8 scales; 0 if they differ, or in other formats
};
void multiply_expert_rows(const ExpertMatrices& experts, const int32_t* ids, int64_t rows, const RowInput& in,
                          const RowOutput& to, Stream stream);

/// Copies the rows `ids` of a matrix to out [m, K] in float32. Every id must be the number of a row.
void take_rows(const DeviceMatrix& matrix, const int32_t* ids, int64_t m, float* out, Stream stream);

/// Numbers as sums of BF16 numbers, the largest first. Two leave an error of at most 2^-17 of each number,
/// three of at most 2^-25. Null if there are fewer.
struct SplitPlanes {
  void* planes[3] = {};
};

/// Represents x [count] as sums.
void split_floats(const float* x, int64_t count, const SplitPlanes& to, Stream stream);

/// Represents rows [n0, n0 + rows) of a matrix as sums, [rows, K]. The global scale is not applied. BF16,
/// MXFP4 and NVFP4 need one plane. F16 is exact with two.
void expand_rows(const DeviceMatrix& matrix, int64_t n0, int64_t rows, const SplitPlanes& to, Stream stream);
constexpr bool is_exact_in_bf16(MatrixFormat format) {
  return format == MatrixFormat::bf16 || format == MatrixFormat::mxfp4 || format == MatrixFormat::nvfp4;
}

/// Computes out[i, j] += bias[j] for `m` rows, which are `stride` floats apart.
void add_bias(float* out, int64_t m, int64_t n, int64_t stride, const float* bias, Stream stream);

}  // namespace twofour::cuda
