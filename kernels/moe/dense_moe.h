#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/moe/sparse_moe.h"
#include "kernels/multiply/dense_multiply.h"

namespace twofour::cuda {

/// Launches of a W4A16 layer of one token: one if it fits, or several.
enum class DenseMoeLaunches { chosen, one, several };

/// The routed experts of a layer in g8, dense NVFP4.
struct DenseMoe : MoeOptions {
  DenseWeights w13;  ///< g8, gated, [E, 2I, H]; I a multiple of 16
  DenseWeights w2;   ///< [E, H, I]
  /// W4A4: F32 [1] multipliers of the activations, hidden's and silu(gate) * up's. nullptr: W4A16.
  const float* w13_input_scale = nullptr;
  const float* w2_input_scale = nullptr;
  bool fused = true;  ///< SwiGLU in the multiplication; else, with W4A4 only, in its result's quantization
  ManyRowsUse many_rows = ManyRowsUse::chosen;
  DenseMoeLaunches launches = DenseMoeLaunches::chosen;
};

/// Bytes of workspace that dense_moe wants for up to `m` tokens. It grows up to 16,384 tokens, the most that
/// are computed at a time with many rows for each expert; with few rows, up to 1024.
size_t dense_moe_workspace(const DenseMoe& moe, int64_t m, int64_t topk);

/// As sparse_moe_in_bf16. Values between the products are BF16 in any case; hidden and the products of a row
/// are then BF16 too.
bool dense_moe_in_bf16(const DenseMoe& moe, int64_t m, int64_t topk);

/// True if one launch computes the layer for these tokens on this device.
bool dense_moe_in_one(const DenseMoe& moe, const MoeTokens& tokens);

/// out[m] = sum over t of topk_weights[m,t] * w2[e] (silu(gate) * up), gate, up = w13[e] hidden[m]. With W4A4
/// both multiplications take NVFP4 activations (ModelOpt's rule) and multiply their decoded values exactly,
/// with float32 sums; values between them are BF16. The rest is as in sparse_moe, including ids, `expert_map`
/// and `error`.
void dense_moe(const DenseMoe& moe, const MoeTokens& tokens, void* workspace, size_t workspace_bytes,
               Stream stream);

}  // namespace twofour::cuda
