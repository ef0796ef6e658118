#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/multiply/sparse_multiply.h"

namespace twofour {

/// Options for running the routed experts of a layer. They do not depend on the storage of the experts.
struct MoeOptions {
  /// [map_size] from global to local experts. -1 if an expert is not here. Null for identity. It is in the
  /// same memory as the layer's weights.
  const int32_t* expert_map = nullptr;
  int64_t map_size = 0;
  /// True to multiply hidden by the router's weight, before W4A4 quantizes it. False to multiply the result.
  bool weight_on_input = false;
  float limit = 0;  ///< gate is at most this, up between -this and this; no clamp if 0
};

}  // namespace twofour

namespace twofour::cuda {

/// The routed experts of a layer, pruned to 2:4. If w13.n == 2 * w2.k, the experts are gated and their gate
/// rows come before their up rows. If w13.n == w2.k, the activation is relu(x)^2, as in kernels/moe/moe.h.
struct SparseMoe : MoeOptions {
  SparseExperts w13;  ///< [E, 2I or I, H]
  SparseExperts w2;   ///< [E, H, I]
};

/// Tokens and their experts. All pointers refer to device memory.
struct MoeTokens {
  int64_t m = 0, topk = 0;
  Float type = Float::bf16;             ///< type of hidden and out
  const void* hidden = nullptr;         ///< [M, H], aligned to two numbers
  const int32_t* topk_ids = nullptr;    ///< [M, topk]
  const float* topk_weights = nullptr;  ///< [M, topk]
  void* out = nullptr;                  ///< [M, H]
  /// [1], set to 1 if an id is outside of the map or the experts. Such an id contributes nothing to the
  /// result. The caller clears the value. Null if wrong ids need not be reported.
  int32_t* error = nullptr;
};

/// The number of launches that compute a layer.
enum class SparseMoeLaunches {
  chosen,
  one,     ///< one launch, if sparse_moe_in_one allows it
  several  ///< one per product; two more, before and after, if rows are sorted
};

/// The use of the kernel for many rows.
enum class ManyRowsUse {
  chosen,  ///< if the kernel is faster
  never,
  always
};

/// The division of both multiplications into blocks, for measurements and tests.
struct SparseMoePlan {
  SparsePlan w13, w2;
  SparseMoeLaunches launches = SparseMoeLaunches::chosen;
  SparsePlan one;  ///< warps_k share the K of 64 gates; a block has warps_n times as many; others are fixed
  ManyRowsUse many_rows = ManyRowsUse::chosen;
};

/// The number of bytes of workspace that sparse_moe needs for up to `m` tokens. It grows with `m` up to
/// 16,384 tokens if experts have many rows, and up to 1024 tokens if they have few. These are the most tokens
/// that are computed at a time. The workspace need not be cleared, not even after an earlier call.
size_t sparse_moe_workspace(const SparseMoe& moe, int64_t m, int64_t topk);

/// True if sparse_moe uses the kernel for many rows with `m` tokens. It then rounds to BF16 as described at
/// sparse_moe.
bool sparse_moe_in_bf16(const SparseMoe& moe, int64_t m, int64_t topk);

/// True if sparse_moe computes the layer in one launch. This needs one token, gated experts, an H that is a
/// multiple of 128, an I that is a multiple of 64, both at most 4096, and weights aligned for 16-byte reads
/// as in SparseExperts. The device's shared memory must hold all weights of the token's experts (Qwen3-Next:
/// 122 KB per multiprocessor). The launch is cooperative: it starts when all its blocks can start. Throws
/// Error like sparse_moe. If the stream has fewer multiprocessors than the device, as in a green context,
/// sparse_moe uses several launches unless a plan asks for one.
bool sparse_moe_in_one(const SparseMoe& moe, const MoeTokens& tokens, const SparsePlan& plan = {});

/// Computes out[m] = sum over t of topk_weights[m,t] * w2[e] act(w13[e] hidden[m]), like moe_reference of
/// kernels/moe/moe.h. Works only on the caller's stream and workspace, which is aligned to 256 bytes. No
/// other call may use the workspace until this call's work is done, because two calls that share its mailbox
/// can wait forever. Ids must not change until then. The function does not allocate, synchronize, or read
/// device memory on the host, so it can be captured in a CUDA graph and replayed with other data. Results are
/// deterministic. Tokens that share an expert read it once, up to the number of rows of a tile. If tokens are
/// few (M * topk at most E / 4), each token reads its own experts. If experts have many rows, and the device
/// has warpgroup instructions, three kinds of values are rounded to BF16: hidden, the values between the
/// products and, for BF16 results, the products of a row. Throws Error on shapes that disagree, too small a
/// workspace, and CUDA's errors.
void sparse_moe(const SparseMoe& moe, const MoeTokens& tokens, void* workspace, size_t workspace_bytes,
                Stream stream, const SparseMoePlan& plan = {});

}  // namespace twofour::cuda
