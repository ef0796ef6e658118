#pragma once
#include <cstdint>

#include "kernels/multiply/sparse_launch.h"

/// Computes the layer of one token in one launch. Shared memory must hold all weights that the token needs.

namespace twofour::cuda {

/// Weights, as in SparseArgs. The arguments are few, because fetching each of their cache lines takes
/// noticeable time in so short a launch.
struct CooperativeWeights {
  const uint8_t *comp, *meta, *scale;
  uint32_t comp_expert, meta_expert, scale_expert;
  uint32_t comp_group, meta_group, scale_group, meta_odd;
  uint32_t comp_quad[4];
  const float* global_scale;
  const float* row_weight;
};

inline constexpr int kMostClusters = 32;

struct CooperativeArgs {
  RowIds rows;
  const void* x;  ///< [H]
  Float type;     ///< type of x and out
  float limit;
  CooperativeWeights up, down;
  uint4* mailbox;                 ///< [tiles, topk * I/64, kMailboxWords]
  void* out;                      ///< [H]
  uint64_t strip_multiplier;      ///< ceil(2^36 / strips)
  int32_t strips, up_steps;       ///< strips of 64 gates per expert; steps of 64 k of the first product
  int32_t intermediate;           ///< I, the size between the products
  int32_t tiles;                  ///< number of tiles of 128 columns of the result
  int32_t parts_log2, job_steps;  ///< warps that share the K of a strip in a block, and steps per warp
  int32_t stages;                 ///< position of the stages, in bytes from the start of shared memory
  uint16_t first_unit[kMostClusters + 1];  ///< the first unit of a cluster, if all experts are here
};

/// The number of bytes of the mailbox between blocks. 0 if no device can compute the layer in one launch.
int64_t cooperative_mailbox_bytes(const SparseExperts& w13, const SparseExperts& w2, int64_t topk);

/// True if launch_cooperative can compute the layer of one token on this device.
bool fits_cooperative(const SparseArgs& up, const SparseArgs& down, const SparsePlan& plan);

/// Computes both products. Their tilings need not be set, and `mailbox` need not be cleared. Returns false,
/// and does nothing, if CUDA refuses the launch or if the stream has fewer multiprocessors than the device,
/// as in a green context.
bool launch_cooperative(const SparseArgs& up, const SparseArgs& down, SparseLayout layout, void* mailbox,
                        const SparsePlan& plan, Stream stream);

}  // namespace twofour::cuda
