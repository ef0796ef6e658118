#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#include "kernels/pack/device_pack.h"

namespace twofour::cuda {

/// The FP8 route. NVFP4 weights are decoded once to E4M3, activations are quantized to E4M3 on the way, and
/// cuBLASLt multiplies. It shows the speed of an existing library, to compare twofour's kernels with. It
/// reads 1.78 times the bytes of NVFP4, and rounds weights again (five bits of E2M1 times E4M3 become four).
///
/// cuBLASLt takes weights and activations with one scale each, or with scales of their rows. Every function
/// here has a scale per row. For scaling by tensor, all these scales are the same.
enum class Fp8Scaling { tensor, row };

/// Computes E4M3 scales F32 [E, N] of NVFP4 weights, for dequantize_to_fp8. A scale is fp8_scale_of
/// (kernels/numbers/casts.h) of the largest weight of the row or of all rows. Weights must be finite.
void fp8_scales_of_weights(const DenseMatrices& dense, const float* global_scale, Fp8Scaling scaling,
                           float* scales, Stream stream);

/// Activations to quantize to E4M3, as encode_fp8 of kernels/numbers/casts.h does.
struct QuantizeToFp8 {
  const void* x = nullptr;  ///< [M, K], aligned to 16 bytes
  Float type = Float::bf16;
  int64_t m = 0, k = 0;  ///< k is a multiple of 16
  Fp8Scaling scaling = Fp8Scaling::row;
  uint8_t* codes = nullptr;  ///< [M, K]
  float* scales = nullptr;   ///< [M]
};
void quantize_to_fp8(const QuantizeToFp8& args, Stream stream);

/// Numbers in E4M3 with the scales of their rows. Both arrays are aligned to 16 bytes.
struct Fp8Rows {
  const uint8_t* codes = nullptr;
  const float* scales = nullptr;
};

/// The shape of products out[e, m, n] = sum over k of w[e, n, k] x[e, m, k], for `e` experts of `m` rows
/// each.
struct Fp8Shape {
  int64_t e = 1;                ///< 1 with scales of rows, since cuBLASLt takes no batches of them on sm_90
  int64_t m = 0, n = 0, k = 0;  ///< n and k are multiples of 16
  Fp8Scaling scaling = Fp8Scaling::tensor;
  Float out_type = Float::bf16;  ///< f32 or bf16
};

/// The reason why cuBLASLt is missing. Empty if it is available. The first call opens the library, so
/// programs start without it.
std::string no_cublaslt_reason();

/// cuBLASLt, set up for a shape.
///
/// Tensor cores of sm_90 add products in fewer bits than float32 has. Measurements there with cuBLASLt 13.1
/// show that, in an addition of 32 products and the sum so far, all bits below 2^-13 of the largest's leading
/// bit are cut. With CUBLASLT_MATMUL_DESC_FAST_ACCUM off, sums of at most 128 k are then added in float32.
class Fp8Multiply {
 public:
  /// Throws Error if there is no cuBLASLt, or if it does not support the shape.
  explicit Fp8Multiply(const Fp8Shape& shape);
  Fp8Multiply(const Fp8Multiply&) = delete;
  Fp8Multiply& operator=(const Fp8Multiply&) = delete;
  ~Fp8Multiply();

  size_t workspace_bytes() const;

  /// Multiplies `weights` [E, N, K] by `x` [E, M, K] and writes `out` [E, M, N]. Can be captured in a CUDA
  /// graph. Only one thread may call it at a time.
  void run(const Fp8Rows& weights, const Fp8Rows& x, void* out, void* workspace, Stream stream) const;

 private:
  struct Plan;
  Plan* plan_ = nullptr;
};

}  // namespace twofour::cuda
