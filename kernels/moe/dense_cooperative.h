#pragma once
#include <cstdint>

#include "kernels/multiply/dense_launch.h"

/// Computes a g8 layer for one token in one launch.

namespace twofour::cuda {

/// Weights in g8. Strides are the bytes from one expert to the next, from one step to the next, and from 128
/// stored rows to the next.
struct CooperativeDenseWeights {
  const uint8_t *codes, *scales;
  const float* global_scale;  ///< [E]
  const float* row_weight;    ///< [topk]; may be null
  int64_t code_expert, scale_expert, scale_step, scale_rows_128;
  int32_t n, k, steps;  ///< a step is 256 k
  int32_t tiles;        ///< tiles of 16 stored rows in an expert
};

/// Positions in a block's shared memory, in bytes from its start.
struct CooperativeDensePlan {
  int32_t x;      ///< hidden, and later gate times up, as units
  int32_t sums;   ///< [slots][16]
  int32_t bytes;  ///< number of bytes in total
};

struct CooperativeDenseArgs {
  RowIds rows;
  const void* x;  ///< [H]
  Float type;     ///< type of x and out
  float limit;
  CooperativeDenseWeights up, down;
  uint4* active;  ///< [topk, steps of I, 32]: gate times up as BF16 units
  void* out;      ///< [H]
  CooperativeDensePlan shared;
};

/// True if launch_cooperative() can compute the layer of one token on this device. `up` and `down` must
/// already describe the weights.
bool fits_cooperative(const DenseArgs& up, const DenseArgs& down);

/// Computes both products: `up` from hidden and ids, then `down` from the result. Their tilings need not be
/// set. Returns false, and does nothing, if CUDA refuses the launch or if the stream has fewer
/// multiprocessors than the device, as in a green context.
bool launch_cooperative(const DenseArgs& up, const DenseArgs& down, const void* hidden, Float type,
                        Stream stream);

}  // namespace twofour::cuda
