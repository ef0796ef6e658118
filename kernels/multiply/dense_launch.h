#pragma once
#include <cstdint>

#include "formats/hd.h"
#include "kernels/multiply/dense_multiply.h"
#include "kernels/multiply/sparse_launch.h"

namespace twofour::cuda {

/// Activations as the dense kernel reads them: for every row and 256 k, 32 units of 16 bytes in the order of
/// unit_place. A unit has its eight k in the order 0, 4, 1, 5, 2, 6, 3, 7.
///   units    [rows, K/256, 32]: BF16; or halves, with a factor for each row
///   factors  [rows]: a power of two, 2^14 / the halves' scale (decoding divides by 2^14); BF16: nullptr
/// Units behind K are not read.
struct DenseRows16 {
  uint4* units;
  float* factors;
};
TWOFOUR_HD constexpr int64_t dense_steps(int64_t k) { return (k + 255) / 256; }

/// The place of unit `u` (k / 8) of a row: [step][word][t].
TWOFOUR_HD constexpr int64_t unit_place(int64_t u) { return u / 32 * 32 + u % 8 * 4 + u % 32 / 8; }

/// Arguments of the kernel of dense_multiply and dense_moe.
struct DenseArgs {
  // Weights
  const uint8_t *codes, *scales;
  const float* global_scale;  ///< [E]
  int32_t e, n, k, steps;     ///< steps of 256 k
  bool aligned, gated, g8;
  int64_t code_expert, scale_expert;  ///< bytes of an expert, if aligned
  int64_t scale_step;                 ///< bytes from a step to the next, if aligned
  int64_t scale_rows_128;             ///< bytes from 128 rows to the next, in g8
  // Rows
  DenseRows16 x;          ///< written by the preceding kernel
  const uint16_t* raw_x;  ///< [.., K] BF16, in place of x if rows are multiplied one by one
  RowIds rows;
  int32_t rows_per_x;
  const float* row_weight;  ///< [rows], or nullptr
  const Route* route;       ///< nullptr: every row is multiplied on its own, if fits_dense_single
  const int32_t* sorted;    ///< [rows], with route
  bool route_from_predecessor;
  // Cut
  int32_t warps_k, tile_m;
  int32_t tiles;     ///< of an expert
  int32_t groups;    ///< of tiles that a block computes one after another
  int32_t segments;  ///< with launch_dense_tokens: topk
  // Epilogue
  DenseEpilogue epilogue;
  float limit;
  void* out;
  Float out_type;
  uint16_t* active;  ///< in place of `out`, with DenseEpilogue::swiglu: BF16 units [rows, steps of N/2, 32]
};

/// Checks the weights and fills the fields of `args` that describe them.
void describe_dense(const DenseWeights& weights, const char* where, DenseArgs& args);

/// True if a multiprocessor has room for rows of x that are multiplied one by one.
bool fits_dense_single(const DenseArgs& args);

/// Chooses the cut if `warps_k` is 0 and starts the kernel over `args`; its cut need not be set. Without
/// raw_x, the preceding kernel must be one of ours that started when ids, maps and weights of rows were
/// ready; this kernel may start before that one ends.
void launch_dense(DenseArgs args, int warps_k, Stream stream);

/// True if launch_dense_tokens can multiply by such weights, with `topk` rows for each token.
bool fits_dense_tokens(const DenseArgs& args, int64_t topk);

/// out[m] of [M, N] = the sum of the rows of each token (`segments` of them, without a route). Weights are
/// not gated.
void launch_dense_tokens(DenseArgs args, Stream stream);

struct PrepareDenseArgs {
  const void* x;  ///< [rows_x, K]
  Float type;
  Nvfp4Rows nvfp4;  ///< in place of x
  int32_t rows_x, k;
  DenseRows16 to;  ///< BF16 if it has no factors, from BF16 only
  RowIds rows;
  bool rows_are_x;  ///< a row without an expert is skipped: it is never read and may never have been written
  Route* route;     ///< nullptr: no sorting
  int32_t* sorted;  ///< [rows]
};

/// Prepares activations and sorts rows by expert, in one launch.
void launch_prepare_dense(const PrepareDenseArgs& args, Stream stream);

}  // namespace twofour::cuda
