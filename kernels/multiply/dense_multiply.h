#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/multiply/sparse_multiply.h"

namespace twofour::cuda {

/// The order in which dense NVFP4 weights are stored on the device: as in a checkpoint, or as g8.
enum class DenseLayout { rows, g8 };

/// Dense experts in device memory.
///   rows  codes U8 [E, N, K/2], scales E4M3 [E, N, K/16]
///   g8    weight and scale of formats/layouts/gate_up_interleaved8.h
/// Wide reads are used if both arrays are aligned to 16 bytes, N is a multiple of 16 and K is a multiple of
/// 64. Otherwise weights are read byte by byte.
struct DenseWeights {
  DenseLayout layout = DenseLayout::rows;
  const uint8_t* codes = nullptr;
  const uint8_t* scales = nullptr;
  int64_t e = 0, n = 0, k = 0;          ///< k is a multiple of 16
  bool gated = false;                   ///< gate rows come before up rows; g8 interleaves them
  const float* global_scale = nullptr;  ///< F32 [E], multipliers
};

/// Activations in NVFP4, for W4A4. They are used instead of ExpertRows::x.
struct Nvfp4Rows {
  const uint8_t* codes = nullptr;       ///< [R / rows_per_x, K/2]
  const uint8_t* scales = nullptr;      ///< [R / rows_per_x, K/16] E4M3
  const float* global_scale = nullptr;  ///< [1], a multiplier
};

/// The output of a launch.
enum class DenseEpilogue {
  rows,    ///< out [R, N], gate rows before up rows
  stored,  ///< out [R, N] in the order of stored rows, which g8 interleaves
  swiglu,  ///< out [R, N/2]: silu(gate) * up, row_weight in both; only g8 and gated: one lane then has both
};

struct DenseOptions {
  const Nvfp4Rows* nvfp4 = nullptr;  ///< if given, W4A4 instead of W4A16
  DenseEpilogue epilogue = DenseEpilogue::rows;
  float limit = 0;                      ///< limit to which gate and up are clamped; 0 if none
  const int32_t* expert_map = nullptr;  ///< [map_size] from ids to experts; -1 if not here; null for identity
  int64_t map_size = 0;
  int warps_k = 0;  ///< warps of a block that share K: 1, 2, 4 or 8; chosen automatically if 0
};

size_t dense_multiply_workspace(const DenseWeights& weights, const ExpertRows& rows);

/// Computes out[r] = row_weight[r] * w[ids[r]] x[r / rows_per_x] on tensor cores. Products of decoded weights
/// and activations are exact, and are summed in float32 in a fixed order. BF16 and NVFP4 activations are
/// exact. F16 and F32 activations are rounded to FP16 after scaling each row by a power of two. Everything
/// else is as in sparse_multiply.
void dense_multiply(const DenseWeights& weights, const ExpertRows& rows, void* workspace,
                    size_t workspace_bytes, Stream stream, const DenseOptions& options = {});

}  // namespace twofour::cuda
