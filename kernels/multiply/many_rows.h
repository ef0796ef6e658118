#pragma once
#include <cstdint>

#include "formats/hd.h"
#include "kernels/multiply/dense_multiply.h"
#include "kernels/multiply/sparse_launch.h"

/// Products with many rows per expert, by the warpgroup instructions of sm_90a. Weights are decoded once for
/// up to kMostRows rows.

namespace twofour::cuda {

/// The possible limits of rows for a record of the route. The limit is chosen by the average number of rows
/// of an expert. kMostRows is only for g8. Tensor cores multiply 2:4 weights twice as fast, so shared memory
/// could not supply rows of x in time.
inline constexpr int kMostRows = 256, kWideRows = 128, kMiddleRows = 48, kNarrowRows = 32;

/// The best of these limits for `rows` rows of `experts` experts with `columns` columns. `pairs` is true if
/// pairs of blocks can multiply the weights, as with g8.
int rows_of_record(int64_t rows, int64_t experts, int64_t columns, bool pairs);

/// Rows sorted by expert, and the output of their products.
struct ManyRows {
  int32_t most;                ///< largest number of rows of a record, from rows_of_record
  const Route* route;          ///< records of the rows
  const int32_t* sorted;       ///< [R] rows in the order of the route
  const float* sorted_weight;  ///< [R] factors of the sorted rows; may be null
  const uint16_t* x;           ///< [.., K] BF16, aligned to 16 bytes
  bool x_is_sorted;  ///< x has a row for each of `sorted`, in its order; required if `most` is kMostRows.
                     ///< Otherwise, row r has x[r / rows_per_x]
  int64_t x_rows;    ///< rows of sorted x, at least as many as the rows of all records
  int32_t rows_per_x;
  uint64_t x_multiplier;      ///< ceil(2^36 / rows_per_x) if rows_per_x is above 1
  const float* x_factor;      ///< [1] a factor of all of x; may be null
  const float* global_scale;  ///< [E]
  int32_t e, n, k;
  bool gated;   ///< columns c and n / 2 + c are gate and up
  bool active;  ///< out [R, I] BF16 in the order of `sorted`, silu(gate) * up or relu(x)^2; otherwise out[r]
                ///< of [R, N]. For gated g8 weights, in the order of permuted_k
  float limit;
  void* out;  ///< aligned to 16 bytes
  Float out_type;
  float* parts;          ///< the sums of ManyRowsParts, for items that several blocks multiply
  int32_t* parts_ready;  ///< zeroed counters; each product has its own
};

/// The largest number of multiplying warps in a block, and the largest number of sums in a block. The sums
/// are for 256 columns and kWideRows rows, for more columns and fewer rows, or for fewer columns and more
/// rows.
inline constexpr int kBlockWarps = 16, kBlockSums = 256 * kWideRows;

/// The memory in which blocks of the current device exchange sums.
struct ManyRowsParts {
  int64_t sum_bytes;  ///< size of the sums, which consecutive products share
  int64_t ready;      ///< number of counters of one product
  ManyRowsParts();
};

/// The largest number of experts for which launch_route_many sorts rows.
inline constexpr int64_t kMostRoutedExperts = 8192;

/// Arguments for sorting rows into records.
struct RouteMany {
  RowIds rows;
  int32_t most;             ///< largest number of rows of a record
  const float* row_weight;  ///< [R] factors; may be null
  Route* route;             ///< has route_many_bytes bytes
  int32_t* sorted;          ///< [R]
  float* sorted_weight;     ///< [R], used with row_weight
  int32_t* zeros;           ///< counters to set to 0
  int64_t zero_count;
};
int64_t route_many_bytes(int64_t rows, int64_t experts);
void launch_route_many(const RouteMany& args, Stream stream);

/// The place of k in the x of a product with g8 weights. The k of each 64 are permuted.
TWOFOUR_HD constexpr int64_t permuted_k(int64_t k) {
  const auto t = k % 64 / 16, v = k % 16 / 8, b = k % 8 / 4, j = k % 4 / 2, r = k % 2;
  return k / 64 * 64 + 16 * (2 * v + j) + 8 * r + 2 * t + b;
}

/// Arguments for gathering rows of x in the order that the kernel reads.
struct GatherRows {
  const void* x;  ///< [.., K], K a multiple of 64
  Float type;
  int64_t rows, k;     ///< `rows` is the largest number of rows to write
  bool permuted;       ///< true to write in the order of permuted_k
  const Route* route;  ///< if null, rows of x in their order; else a row for each of `sorted`, in its order:
  const int32_t* sorted;  ///< row r is of x[r / rows_per_x]
  int32_t rows_per_x;
};
/// Writes the gathered rows in BF16.
void launch_gather(const GatherRows& args, uint16_t* to, Stream stream);

/// The parts of the workspace of a product with many rows, as bytes from its start.
struct ManyRowsWorkspace {
  int64_t route, sorted, weights, ready, parts, x, bytes;
  ManyRowsWorkspace(int64_t rows, int64_t experts, int64_t x_numbers);
};

ManyRows sort_many_rows(const RowIds& ids, const ExpertRows& rows, int64_t experts, int64_t columns,
                        bool pairs, void* workspace, Stream stream);

/// Writes the x of a product with g8 weights into its workspace. Sorts the rows if the product requires it.
void gather_rows(const ExpertRows& rows, void* workspace, ManyRows& product, Stream stream);

/// True if rows are BF16 and aligned for the kernel, and experts have at least `crossing` rows on average.
bool are_many_rows(const ExpertRows& rows, int64_t experts, int64_t crossing);

/// Sorts rows and describes their products with the weights `w` [E, N, K], which have a `global_scale`.
template <class Weights>
ManyRows sort_many_rows(const RowIds& ids, const ExpertRows& rows, const Weights& w, bool pairs,
                        void* workspace, Stream stream) {
  ManyRows product = sort_many_rows(ids, rows, w.e, w.n, pairs, workspace, stream);
  product.global_scale = w.global_scale;
  product.n = static_cast<int32_t>(w.n), product.k = static_cast<int32_t>(w.k);
  return product;
}

/// True if the current device can run the kernels for many rows.
bool has_many_rows();

/// True if launch_many_rows can multiply by the weights. It reads 16 columns and one step of K at a time.
bool fits_many_rows(const SparseArgs& weights);

bool fits_many_rows(const DenseWeights& weights);

void launch_many_rows(const SparseArgs& weights, SparseLayout layout, const ManyRows& rows, Stream stream);
/// Multiplies by g8 weights. `rows.x` must be in the order of permuted_k.
void launch_many_rows(const DenseWeights& weights, const ManyRows& rows, Stream stream);

}  // namespace twofour::cuda
