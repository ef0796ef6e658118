#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/multiply/sparse_multiply.h"

namespace twofour {

/// How a model runs the routed experts of a layer, whatever they are stored as.
struct MoeOptions {
  /// [map_size] global to local expert, -1: not here; nullptr: the identity. Where the layer's weights are.
  const int32_t* expert_map = nullptr;
  int64_t map_size = 0;
  /// The router's weight multiplies hidden, before W4A4 quantizes it, instead of the result.
  bool weight_on_input = false;
  float limit = 0;  ///< clamp of gate and up (product.md, "The MoE layer"); 0: none
};

}  // namespace twofour

namespace twofour::cuda {

/// The routed experts of a layer, pruned to 2:4. With w13.n == 2 * w2.k they are gated, rows gate then up;
/// with w13.n == w2.k the activation is relu(x)^2, as in kernels/moe/moe.h.
struct SparseMoe : MoeOptions {
  SparseExperts w13;  ///< [E, 2I or I, H]
  SparseExperts w2;   ///< [E, H, I]
};

/// Tokens and where the router sends them; all pointers to device memory.
struct MoeTokens {
  int64_t m = 0, topk = 0;
  Float type = Float::bf16;             ///< of hidden and out
  const void* hidden = nullptr;         ///< [M, H], on a multiple of two numbers
  const int32_t* topk_ids = nullptr;    ///< [M, topk]
  const float* topk_weights = nullptr;  ///< [M, topk]
  void* out = nullptr;                  ///< [M, H]
  /// [1]; set to 1 where an id is outside the map or the experts, which then contributes nothing. The caller
  /// clears it. nullptr: not reported.
  int32_t* error = nullptr;
};

/// How a layer is started.
enum class SparseMoeLaunches {
  chosen,
  one,     ///< where sparse_moe_in_one
  several  ///< one for each product, and one before and one after them if rows are sorted
};

/// Whether rows go to the many-row kernel.
enum class ManyRowsUse {
  chosen,  ///< where it is faster
  never,
  always
};

/// How the two multiplications are cut; for measurements and tests.
struct SparseMoePlan {
  SparsePlan w13, w2;
  SparseMoeLaunches launches = SparseMoeLaunches::chosen;
  SparsePlan one;  ///< warps_k share the K of 64 gates, a block has warps_n times as many; the rest is given
  ManyRowsUse many_rows = ManyRowsUse::chosen;
};

/// Bytes of workspace that sparse_moe wants for up to `m` tokens. Grows up to 16,384 tokens, which is
/// what it works on at a time with many rows an expert; with few it is 1024. Need not be cleared; what an
/// earlier call left there is fine too.
size_t sparse_moe_workspace(const SparseMoe& moe, int64_t m, int64_t topk);

/// Whether sparse_moe takes `m` tokens as many rows an expert, so that it rounds to BF16 where sparse_moe
/// says.
bool sparse_moe_in_bf16(const SparseMoe& moe, int64_t m, int64_t topk);

/// Whether sparse_moe does the layer in one launch: one token of gated experts, H a multiple of 128, I of 64,
/// both at most 4096, weights as SparseExperts wants them for speed, and a device with shared memory for all
/// the weights that the token chooses (Qwen3-Next: 122 KB a multiprocessor). The launch is cooperative: it
/// starts when all its blocks can. Throws Error as sparse_moe. A stream with fewer multiprocessors than the
/// device (a green context's) gets several launches all the same, unless a plan asks for one.
bool sparse_moe_in_one(const SparseMoe& moe, const MoeTokens& tokens, const SparsePlan& plan = {});

/// out[m] = sum over t of topk_weights[m,t] * w2[e] act(w13[e] hidden[m]), as moe_reference of
/// kernels/moe/moe.h. Works on the caller's stream and workspace (aligned to 256 bytes) alone, which no other
/// call may use until this one is done: two that share the mailbox of one workspace can wait for ever.
/// Ids must stay as they are until then too. Allocates and synchronizes nothing, reads no device memory on
/// the host, and so can be captured in a CUDA graph and replayed with other data. Deterministic. Tokens that
/// share an expert read it once, up to the rows of a tile; few tokens (M * topk at most E / 4) read theirs
/// each. With many rows an expert, where the device has warpgroup instructions, hidden, what is between the
/// products and, of BF16 results, the products of a row are rounded to BF16. Throws Error on shapes that
/// disagree, a workspace too small, and CUDA's errors.
void sparse_moe(const SparseMoe& moe, const MoeTokens& tokens, void* workspace, size_t workspace_bytes,
                Stream stream, const SparseMoePlan& plan = {});

}  // namespace twofour::cuda
