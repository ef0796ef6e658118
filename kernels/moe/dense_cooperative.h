#pragma once
#include <cstdint>

#include "kernels/multiply/dense_launch.h"

/// The g8 layer of one token in one launch.

namespace twofour::cuda {

/// Weights of g8, with the bytes from one expert, step and 128 stored rows to the next.
struct CooperativeDenseWeights {
  const uint8_t *codes, *scales;
  const float* global_scale;  ///< [E]
  const float* row_weight;    ///< [topk], or nullptr
  int64_t code_expert, scale_expert, scale_step, scale_rows_128;
  int32_t n, k, steps;  ///< steps of 256 k
  int32_t tiles;        ///< of 16 stored rows of an expert
};

/// Bytes from the start of a block's shared memory.
struct CooperativeDensePlan {
  int32_t x;      ///< hidden, later gate times up, as units
  int32_t sums;   ///< [slots][16]
  int32_t bytes;  ///< of all
};

struct CooperativeDenseArgs {
  RowIds rows;
  const void* x;  ///< [H]
  Float type;     ///< of x and out
  float limit;
  CooperativeDenseWeights up, down;
  uint4* active;  ///< [topk, steps of I, 32]: gate times up as BF16 units
  void* out;      ///< [H]
  CooperativeDensePlan shared;
};

/// True if launch_cooperative() can compute the layer of one token on this device. `up` and `down` are
/// described already.
bool fits_cooperative(const DenseArgs& up, const DenseArgs& down);

/// Both products, `up` with hidden and ids, `down` with the result; cuts need not be set. Returns false, and
/// does nothing, on a stream with fewer multiprocessors than the device (a green context's) and if CUDA
/// refuses the launch.
bool launch_cooperative(const DenseArgs& up, const DenseArgs& down, const void* hidden, Float type,
                        Stream stream);

}  // namespace twofour::cuda
