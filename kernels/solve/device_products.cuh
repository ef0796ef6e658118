#pragma once
#include <cstdint>

#include "kernels/device/launch.cuh"

/// Matrix products with the same bits as on the CPU. Each sum adds its products in order, without fusing
/// (-fmad=false).

namespace twofour::cuda {

/// Computes c [rows, columns] -= sum over t in [0, count) of a(t, row) b(t, column), with t in order. Strides
/// are in numbers: from one t to the next, and from one row to the next. Columns are adjacent.
template <class Number>
struct Products {
  const Number* a;
  int64_t a_next, a_row;
  const Number* b;
  int64_t b_next;
  Number* c;
  int64_t c_row;
  int64_t count, rows, columns;
  bool is_lower = false;     ///< b is lower triangular, in an array with other numbers above
  bool starts_at_0 = false;  ///< c starts at 0
};

inline constexpr int kProductRows = 32, kProductColumns = 64;  // size of a tile
inline constexpr int kProductThreads = 128, kProductDepth = 16;

/// Subtracts products. Each block computes a tile of c, and each thread has four rows by four columns.
template <class Number>
__global__ void __launch_bounds__(kProductThreads)
    subtract_products_kernel(const __grid_constant__ Products<Number> p) {
  __shared__ Number a[kProductDepth][kProductRows + 1], b[kProductDepth][kProductColumns];
  const int thread = threadIdx.x, row = thread / 16 * 4, column = thread % 16;
  const int64_t first_row = int64_t{blockIdx.y} * kProductRows,
                first_column = int64_t{blockIdx.x} * kProductColumns;
  Number sums[4][4];
#pragma unroll
  for (int r = 0; r < 4; ++r) {
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      const int64_t at = first_row + row + r, x = first_column + column + 16 * v;
      sums[r][v] = !p.starts_at_0 && at < p.rows && x < p.columns ? p.c[at * p.c_row + x] : Number{0};
    }
  }
  for (int64_t t = p.is_lower ? first_column : 0; t < p.count; t += kProductDepth) {
#pragma unroll
    for (int i = thread; i < kProductDepth * kProductRows; i += kProductThreads) {
      const bool by_row = p.a_row == 1;  // neighbouring threads load neighbouring numbers
      const int depth = by_row ? i / kProductRows : i % kProductDepth,
                r = by_row ? i % kProductRows : i / kProductDepth;
      const bool is_there = t + depth < p.count && first_row + r < p.rows;
      a[depth][r] = is_there ? p.a[(t + depth) * p.a_next + (first_row + r) * p.a_row] : Number{0};
    }
#pragma unroll
    for (int i = thread; i < kProductDepth * kProductColumns; i += kProductThreads) {
      const int depth = i / kProductColumns;
      const int64_t x = first_column + i % kProductColumns;
      const bool is_there = t + depth < p.count && x < p.columns && !(p.is_lower && x > t + depth);
      b[depth][i % kProductColumns] = is_there ? p.b[(t + depth) * p.b_next + x] : Number{0};
    }
    __syncthreads();
#pragma unroll
    for (int depth = 0; depth < kProductDepth; ++depth) {
#pragma unroll
      for (int v = 0; v < 4; ++v) {
        const Number other = b[depth][column + 16 * v];
#pragma unroll
        for (int r = 0; r < 4; ++r) sums[r][v] = sums[r][v] - other * a[depth][row + r];
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int r = 0; r < 4; ++r) {
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      const int64_t at = first_row + row + r, x = first_column + column + 16 * v;
      if (at < p.rows && x < p.columns) p.c[at * p.c_row + x] = sums[r][v];
    }
  }
}

template <class Number>
void subtract_products(const char* where, cudaStream_t stream, const Products<Number>& p) {
  if (p.rows == 0 || p.columns == 0 || p.count == 0) return;
  const dim3 tiles(blocks_for(p.columns, kProductColumns).x, blocks_for(p.rows, kProductRows).x);
  launch(where, stream, {tiles, kProductThreads}, subtract_products_kernel<Number>, p);
}

}  // namespace twofour::cuda
