#pragma once
#include <cstdint>

#include "formats/hd.h"
#include "kernels/multiply/dense_multiply.h"
#include "kernels/multiply/sparse_launch.h"

namespace twofour::cuda {

/// Activations as the dense kernel reads them. Every row has 32 units of 16 bytes for each 256 k, in the
/// order of unit_place. A unit has its eight k in the order 0, 4, 1, 5, 2, 6, 3, 7.
///   units    [rows, K/256, 32]: BF16, or halves with a factor for each row
///   factors [rows]: a power of two, 2^14 / the scale of the halves (decoding divides by 2^14); null for
///            BF16
/// Units beyond K are not read.
struct DenseRows16 {
  uint4* units;
  float* factors;
};
TWOFOUR_HD constexpr int64_t dense_steps(int64_t k) { return (k + 255) / 256; }

/// The place of unit `u` (k / 8) in a row. Places are ordered [step][word][t].
TWOFOUR_HD constexpr int64_t unit_place(int64_t u) { return u / 32 * 32 + u % 8 * 4 + u % 32 / 8; }

/// Arguments of the kernel that dense_multiply and dense_moe launch.
struct DenseArgs {
  // Weights
  const uint8_t *codes, *scales;
  const float* global_scale;  ///< [E]
  int32_t e, n, k, steps;     ///< a step is 256 k
  bool aligned, gated, g8;
  int64_t code_expert, scale_expert;  ///< bytes of one expert, if aligned
  int64_t scale_step;                 ///< bytes from a step to the next, if aligned
  int64_t scale_rows_128;             ///< bytes from a block of 128 rows to the next, in g8
  // Rows
  DenseRows16 x;          ///< written by the preceding kernel
  const uint16_t* raw_x;  ///< [.., K] BF16, used instead of x if rows are multiplied one by one
  RowIds rows;
  int32_t rows_per_x;
  const float* row_weight;  ///< [rows]; may be null
  const Route* route;       ///< null if each row is multiplied separately, which needs fits_dense_single
  const int32_t* sorted;    ///< [rows] in the order of the route
  bool route_from_predecessor;
  // Tiling
  int32_t warps_k, tile_m;
  int32_t tiles;     ///< number of tiles of an expert
  int32_t groups;    ///< number of groups of tiles that a block computes one after another
  int32_t segments;  ///< topk with launch_dense_tokens
  // Epilogue
  DenseEpilogue epilogue;
  float limit;
  void* out;
  Float out_type;
  uint16_t* active;  ///< replaces `out` with DenseEpilogue::swiglu: BF16 units [rows, steps of N/2, 32]
};

/// Checks the weights and sets the fields of `args` that describe them.
void describe_dense(const DenseWeights& weights, const char* where, DenseArgs& args);

/// True if the shared memory of a multiprocessor holds rows of x when rows are multiplied one by one.
bool fits_dense_single(const DenseArgs& args);

/// Chooses the tiling if `warps_k` is 0, and starts the kernel with `args`, whose tiling need not be set.
/// Without raw_x, the preceding kernel must be one of twofour's, and must have started when ids, maps and
/// weights of rows were ready. The launched kernel may start before the preceding one ends.
void launch_dense(DenseArgs args, int warps_k, Stream stream);

/// True if launch_dense_tokens can multiply by the weights in `args`, with `topk` rows for each token.
bool fits_dense_tokens(const DenseArgs& args, int64_t topk);

/// Computes out[m] of [M, N], the sum of the products of a token's rows. A token has `segments` rows, and
/// there is no route. Weights must not be gated.
void launch_dense_tokens(DenseArgs args, Stream stream);

struct PrepareDenseArgs {
  const void* x;  ///< [rows_x, K]
  Float type;
  Nvfp4Rows nvfp4;  ///< used instead of x
  int32_t rows_x, k;
  DenseRows16 to;  ///< BF16 if `to` has no factors; then x must be BF16
  RowIds rows;
  bool rows_are_x;  ///< a row without an expert is skipped, because it is never read and may be unwritten
  Route* route;     ///< null if rows are not sorted
  int32_t* sorted;  ///< [rows]
};

/// Prepares activations and sorts rows by expert, in one launch.
void launch_prepare_dense(const PrepareDenseArgs& args, Stream stream);

}  // namespace twofour::cuda
