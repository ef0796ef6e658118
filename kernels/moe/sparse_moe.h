#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/multiply/sparse_multiply.h"

namespace twofour {

/// How a model runs the routed experts of a layer, independent of their storage.
struct MoeOptions {
  /// [map_size] global to local expert, -1: not here; nullptr: the identity. In the memory of the layer's
  /// weights.
  const int32_t* expert_map = nullptr;
  int64_t map_size = 0;
  /// The router's weight multiplies hidden, before W4A4 quantizes it, instead of the result.
  bool weight_on_input = false;
  float limit = 0;  ///< gate is at most this, up between -this and this; 0: no clamp
};

}  // namespace twofour

namespace twofour::cuda {

/// The routed experts of a layer, pruned to 2:4. With w13.n == 2 * w2.k they are gated, rows gate then up;
/// with w13.n == w2.k the activation is relu(x)^2, as in kernels/moe/moe.h.
struct SparseMoe : MoeOptions {
  SparseExperts w13;  ///< [E, 2I or I, H]
  SparseExperts w2;   ///< [E, H, I]
};

/// Tokens and their experts; all pointers are to device memory.
struct MoeTokens {
  int64_t m = 0, topk = 0;
  Float type = Float::bf16;             ///< of hidden and out
  const void* hidden = nullptr;         ///< [M, H], on a multiple of two numbers
  const int32_t* topk_ids = nullptr;    ///< [M, topk]
  const float* topk_weights = nullptr;  ///< [M, topk]
  void* out = nullptr;                  ///< [M, H]
  /// [1]; set to 1 if an id is outside the map or the experts; that id then contributes nothing. The caller
  /// clears it. nullptr: not reported.
  int32_t* error = nullptr;
};

/// The launches of a layer.
enum class SparseMoeLaunches {
  chosen,
  one,     ///< if sparse_moe_in_one
  several  ///< one for each product, and one before and one after them if rows are sorted
};

/// When rows go to the many-row kernel.
enum class ManyRowsUse {
  chosen,  ///< if it is faster
  never,
  always
};

/// The cuts of both multiplications; for measurements and tests.
struct SparseMoePlan {
  SparsePlan w13, w2;
  SparseMoeLaunches launches = SparseMoeLaunches::chosen;
  SparsePlan one;  ///< warps_k share the K of 64 gates, a block has warps_n times as many; the rest is fixed
  ManyRowsUse many_rows = ManyRowsUse::chosen;
};

/// Bytes of workspace that sparse_moe wants for up to `m` tokens. It grows up to 16,384 tokens, the most that
/// are computed at a time with many rows for each expert; with few rows, up to 1024. It need not be cleared,
/// not even after an earlier call.
size_t sparse_moe_workspace(const SparseMoe& moe, int64_t m, int64_t topk);

/// True if sparse_moe treats `m` tokens as many rows for each expert, so that it rounds to BF16 as described
/// there.
bool sparse_moe_in_bf16(const SparseMoe& moe, int64_t m, int64_t topk);

/// True if sparse_moe computes the layer in one launch: one token of gated experts, H a multiple of 128, I of
/// 64, both at most 4096, weights aligned as SparseExperts needs for speed, and a device with shared memory
/// for all weights of the token's experts (Qwen3-Next: 122 KB for each multiprocessor). The launch is
/// cooperative: it starts when all its blocks can. Throws Error as sparse_moe. A stream with fewer
/// multiprocessors than the device (a green context's) gets several launches, unless a plan asks for one.
bool sparse_moe_in_one(const SparseMoe& moe, const MoeTokens& tokens, const SparsePlan& plan = {});

/// out[m] = sum over t of topk_weights[m,t] * w2[e] act(w13[e] hidden[m]), as moe_reference of
/// kernels/moe/moe.h. Works only on the caller's stream and workspace (aligned to 256 bytes). No other call
/// may use the workspace until this one is done: two calls that share its mailbox can wait for ever. Ids must
/// not change until then either. It does not allocate, synchronize or read device memory on the host, so it
/// can be captured in a CUDA graph and replayed with other data. Deterministic. Tokens that share an expert
/// read it once, up to the rows of a tile; few tokens (M * topk at most E / 4) each read their own. With many
/// rows for each expert, and on a device with warpgroup instructions, hidden, the values between the products
/// and, for BF16 results, the products of a row are rounded to BF16. Throws Error on shapes that disagree,
/// too small a workspace, and CUDA's errors.
void sparse_moe(const SparseMoe& moe, const MoeTokens& tokens, void* workspace, size_t workspace_bytes,
                Stream stream, const SparseMoePlan& plan = {});

}  // namespace twofour::cuda
