#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/moe/sparse_moe.h"
#include "kernels/multiply/dense_multiply.h"

namespace twofour::cuda {

/// The number of launches that compute a W4A16 layer of one token. `chosen` is one launch if the layer fits,
/// and otherwise several.
enum class DenseMoeLaunches { chosen, one, several };

/// The routed experts of a layer in g8, a layout of dense NVFP4.
struct DenseMoe : MoeOptions {
  DenseWeights w13;  ///< g8, gated, [E, 2I, H]; I is a multiple of 16
  DenseWeights w2;   ///< [E, H, I]
  /// For W4A4, F32 [1] multipliers of the activations: the first is for hidden, the second for silu(gate) *
  /// up. Null for W4A16.
  const float* w13_input_scale = nullptr;
  const float* w2_input_scale = nullptr;
  bool fused = true;  ///< SwiGLU within the multiplication; if false (W4A4 only), within quantization
  ManyRowsUse many_rows = ManyRowsUse::chosen;
  DenseMoeLaunches launches = DenseMoeLaunches::chosen;
};

/// The number of bytes of workspace that dense_moe needs for up to `m` tokens. It grows with `m` up to 16,384
/// tokens if experts have many rows, and up to 1024 tokens if they have few. These are the most tokens that
/// are computed at a time.
size_t dense_moe_workspace(const DenseMoe& moe, int64_t m, int64_t topk);

/// True if dense_moe uses the kernel for many rows with `m` tokens, as in sparse_moe_in_bf16. Then hidden and
/// the products of a row are BF16. The values between the products are always BF16.
bool dense_moe_in_bf16(const DenseMoe& moe, int64_t m, int64_t topk);

/// True if one launch computes the layer for these tokens on this device.
bool dense_moe_in_one(const DenseMoe& moe, const MoeTokens& tokens);

/// Computes out[m] = sum over t of topk_weights[m,t] * w2[e] (silu(gate) * up), with gate, up = w13[e]
/// hidden[m]. For W4A4, both multiplications read NVFP4 activations (quantized by ModelOpt's rule) and
/// multiply their decoded values exactly, with float32 sums. Values between the multiplications are BF16.
/// Everything else is as in sparse_moe, including ids, `expert_map` and `error`.
void dense_moe(const DenseMoe& moe, const MoeTokens& tokens, void* workspace, size_t workspace_bytes,
               Stream stream);

}  // namespace twofour::cuda
