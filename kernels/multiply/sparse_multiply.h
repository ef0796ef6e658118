#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/device/stream.h"
#include "kernels/pack/device_pack.h"

namespace twofour::cuda {

/// Experts pruned to 2:4 in device memory, stored as in an artifact.
///   planes  comp U8 [E, K/4, N], meta U8 [E, K/8, N], scale E4M3 [E, K/16, N]
///   packed  packed U8 [E, K/8, 4N]; the other pointers are not read
/// Weights are read 16 bytes at a time if parts are aligned to 16 bytes, and N and (if gated) N/2 are
/// multiples of 16. Otherwise they are read byte by byte. Results are right for any shape; the shapes of
/// models are fast. Metadata must be legal (is_legal_meta).
struct SparseExperts {
  SparseLayout layout = SparseLayout::planes;
  const uint8_t* parts[3] = {};
  int64_t e = 0, n = 0, k = 0;          ///< k is a multiple of 16
  const float* global_scale = nullptr;  ///< F32 [E], multipliers
};

/// The division of a launch into blocks. A value of 0 is chosen from the shape. Results do not depend on the
/// order in which blocks run. They depend only on these values and, if the values need more shared memory
/// than the GPU has, on the size of its shared memory.
struct SparsePlan {
  int warps_k = 0;  ///< warps of a block that share K
  int warps_n = 0;  ///< warps of a block side by side along N, 128 columns each
  int cluster = 0;  ///< blocks of a cluster that share K, 1 to 8
  int tile_m = 0;   ///< rows of x that a block multiplies at a time: 4, 8, 16 or 32
};

/// Rows, each of which is multiplied by one expert.
struct ExpertRows {
  int64_t rows = 0;         ///< R, which is M * topk for an MoE layer
  int64_t rows_per_x = 1;   ///< row r reads x[r / rows_per_x]; at most 4096
  const void* x = nullptr;  ///< [R / rows_per_x, K], aligned to two numbers
  Float x_type = Float::f32;
  const int32_t* ids = nullptr;  ///< [R] experts of rows; a row is not written unless its id is 0 to E - 1
  const float* row_weight = nullptr;  ///< [R] factors of rows; may be null
  void* out = nullptr;                ///< [R, N]
  Float out_type = Float::f32;
  int32_t* error = nullptr;  ///< [1], set to 1 if an id is not 0 to E - 1; may be null
  bool distinct = false;     ///< few rows share an expert: rows are not sorted; each reads its own expert
};

/// The number of bytes of workspace that sparse_multiply needs.
size_t sparse_multiply_workspace(const SparseExperts& experts, const ExpertRows& rows);

/// Computes out[r] = row_weight[r] * w[ids[r]] x[r / rows_per_x]. Products of decoded weights and activations
/// are exact. Each 64 activations of a row are rounded to FP16 after scaling by a power of two. This is exact
/// for BF16 and FP16, unless the activations differ by more than factors of 2^15 and 2^24. If an expert has
/// many BF16 rows, they are used unchanged. Sums are in float32, in an order that depends only on the shapes,
/// the plan and the GPU model. An expert is read once for up to `tile_m` of its rows. Nothing is allocated,
/// nothing is synchronized, and no partial sums go through global memory. `workspace` is aligned to 256
/// bytes. Throws Error on impossible shapes and on CUDA's errors.
void sparse_multiply(const SparseExperts& experts, const ExpertRows& rows, void* workspace,
                     size_t workspace_bytes, Stream stream, const SparsePlan& plan = {});

/// Computes the same with plain loops on CUDA cores, one thread for each output. This is the reference for
/// the fast kernel.
void sparse_multiply_reference(const SparseExperts& experts, const ExpertRows& rows, Stream stream);

}  // namespace twofour::cuda
