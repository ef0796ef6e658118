#pragma once
#include <cstdint>

#include "kernels/multiply/sparse_multiply.h"

namespace twofour::cuda {

/// Activations as the 2:4 kernel reads them. Every row has, for each 64 k, 64 halves in the order of the
/// kernel's fragments, and a factor of these halves.
///   halves   [rows, K/64, 64]: word (h * 4 + t) * 4 + q of 64 k holds k = 32h + 8q + 2t and the next k
///   factors  [rows, K/64]: a power of two, 2^14 / the scale of the halves (decode4 divides by 2^14)
/// K is padded with zeros.
struct PreparedRows {
  uint4* halves;
  float* factors;
};
constexpr int64_t prepared_steps(int64_t k) { return (k + 63) / 64; }

/// Rows sorted by expert. launch_prepare writes it.
struct Route {
  int32_t active;  ///< number of records in use
  int32_t unused[3];
  struct Record {
    int32_t expert, begin, count, unused;
  } records[1];  ///< [min(rows, E)]
};

/// The ids of the experts of rows.
struct RowIds {
  const int32_t* ids;         ///< [rows]
  const int32_t* expert_map;  ///< [known] from ids to experts on this device; may be null
  int32_t rows, known;        ///< ids are less than `known`
  int32_t e;                  ///< number of experts on this device
  int32_t* error;             ///< set to 1 on a wrong id; may be null
};

/// The destination of a block's sums.
enum class Epilogue : int32_t {
  rows,        ///< out[r] of [R, N]
  activation,  ///< prepared[r] of [R, I]: silu(gate) * up, or relu(x)^2
  tokens,      ///< out[m] of [M, N]: the sum over the topk rows of a token
};

/// Offsets in a block's shared memory, in bytes from its start.
struct SharedPlan {
  int32_t list, experts, weights, state;  ///< for the rows of a token
  int32_t x, x_factors;                   ///< a converted raw row and its factors
  int32_t received;                       ///< sums that blocks of a cluster send to each other
  int32_t scales;                         ///< converted scales of the warps' steps
  int32_t stages, stage;  ///< a stage holds weights and, unless x is raw, rows of x and factors
  int32_t bytes;
};

/// Arguments of the kernel that sparse_multiply and sparse_moe launch.
struct SparseArgs {
  // Weights
  const uint8_t* parts[3];
  const float* global_scale;  ///< [E]
  int32_t e, n, k;
  const uint8_t *comp, *meta, *scale;              ///< at expert 0, column 0 and k = 0
  int64_t comp_quad[4];                            ///< bytes from quad 0 of 16 k to each quad
  int64_t comp_expert, meta_expert, scale_expert;  ///< bytes from one expert to the next
  int64_t comp_group, meta_group, scale_group;     ///< bytes from a group of 16 k to the next
  int64_t comp_stride, meta_stride, scale_stride;  ///< bytes from a step of a warp to its next step
  int64_t meta_odd;  ///< bytes from the metadata of even quads to the metadata of odd quads
  bool gated;        ///< columns c and n / 2 + c go to the same block
  bool aligned;      ///< 16 columns and 64 k can be copied at once
  // Rows
  RowIds rows;
  int32_t rows_per_x;
  uint64_t x_multiplier;  ///< ceil(2^36 / rows_per_x) if rows_per_x is above 1
  PreparedRows x;         ///< written by the preceding kernel, unless raw
  const void* raw;        ///< [rows / rows_per_x, K] of bf16 or f16, 16-byte aligned, with distinct; or null
  Float raw_type;
  const float* row_weight;  ///< [rows] factors; may be null
  bool distinct;            ///< each row is multiplied separately
  const Route* route;       ///< used unless `distinct`
  const int32_t* sorted;    ///< [rows] in the order of the route
  bool route_from_predecessor;
  // Tiling
  int32_t warps_k, warps_k_log2, warps_n, cluster, tile_m;
  int32_t segments;  ///< experts along K: topk with Epilogue::tokens, otherwise 1
  int32_t k_steps;   ///< number of steps for one expert
  int32_t least_steps,
      one_more;  ///< steps of a warp; one more for warps before `one_more`. Not with Epilogue::tokens
  // Epilogue
  Epilogue epilogue;
  float limit;
  void* out;
  Float out_type;
  bool wide_out;  ///< `out` is aligned to 16 bytes
  PreparedRows prepared;
  SharedPlan shared;
};

/// The largest number of experts of a token.
inline constexpr int kMaxSegments = 512;

/// Chooses the tiling if `plan` leaves it open, and starts the kernel with `args`, whose tiling need not be
/// set. If `overlap` is true, the kernel may start before the preceding kernel ends. The preceding kernel
/// must then be one of twofour's.
void launch_sparse(SparseArgs args, SparseLayout layout, SparsePlan plan, bool overlap, Stream stream);

/// True if launch_sparse can read the activations `x` without preparation.
bool takes_raw(const SparseArgs& args, const void* x, Float type);

/// Checks the weights and sets the fields of `args` that describe them.
void describe_weights(const SparseExperts& experts, bool gated, const char* where, SparseArgs& args);

struct PrepareArgs {
  const void* x;  ///< [rows_x, K]
  Float type;
  int32_t rows_x, k;
  PreparedRows to;
  RowIds rows;
  Route* route;     ///< null if rows are not sorted
  int32_t* sorted;  ///< [rows]
};

struct CombineArgs {
  RowIds rows;
  const float* y;  ///< [M * topk, H], multiplied by the row weights
  int32_t m, topk, h;
  void* out;  ///< [M, H]
  Float type;
};

/// Computes out[m], the sum over the rows of a token whose experts are on this device, in the order of the
/// rows.
void launch_combine(const CombineArgs& args, Stream stream);

/// Prepares activations and sorts rows by expert, in one launch.
void launch_prepare(const PrepareArgs& args, Stream stream);

}  // namespace twofour::cuda
