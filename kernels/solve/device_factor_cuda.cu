#include <algorithm>

#include "kernels/device/check.h"
#include "kernels/device/launch.cuh"
#include "kernels/solve/device_factor.h"
#include "kernels/solve/device_products.cuh"
#include "kernels/solve/hessian.h"

// The Cholesky factorization of hessian.cpp on the device. Each number is computed in the same order and
// without fused products (-fmad=false), so the bits equal the CPU's. Rows are divided into panels of 32. One
// block factors the corner of a panel, each thread takes one column through the panel, and tiles update the
// numbers before or after it.

namespace twofour::cuda {
namespace {

constexpr int kPanel = 32;  // rows of a factor that are computed together
constexpr int kThreads = 64;
constexpr const char* kWhere = "factor";

/// Writes the shrunk and damped H, with columns and rows reversed, to the upper triangle.
__global__ void reverse_kernel(const float* mean, int64_t k, double lambda, double shrink, double* numbers) {
  const int64_t j = int64_t{blockIdx.y} * blockDim.x + threadIdx.x, i = blockIdx.x;
  if (j < i || j >= k) return;
  const float h = mean[(k - 1 - j) * k + k - 1 - i];
  numbers[i * k + j] = i == j ? (h == 0 ? 1 : double{h}) + lambda : double{shrunk(h, shrink)};
}

/// A pivot that was refused because it is not above 0.
struct Refused {
  int64_t at;  ///< index of the pivot; -1 if there is none
  double pivot;
};

/// Computes rows and columns [first, first + kPanel) of the factor, in one block.
__global__ void __launch_bounds__(1024)
    corner_kernel(double* numbers, int64_t k, int64_t first, double* diagonal, Refused* refused) {
  __shared__ double corner[kPanel][kPanel + 1];
  const int row = threadIdx.x / kPanel, column = threadIdx.x % kPanel;
  const int size = static_cast<int>(min(int64_t{kPanel}, k - first));
  const bool is_there = row < size && column < size && column >= row;
  double own = is_there ? numbers[(first + row) * k + first + column] : 0;
  for (int i = 0; i < size; ++i) {
    if (row == i && column == i) {
      if (!(own > 0) || isinf(own)) {
        if (refused->at < 0) *refused = {first + i, own};
      }
      corner[i][i] = sqrt(own);
      diagonal[first + i] = corner[i][i];
    }
    __syncthreads();
    if (row == i && column > i) {
      own = own / corner[i][i];
      corner[i][column] = own;
    }
    __syncthreads();
    if (row > i && column >= row) own = own - corner[i][column] * corner[i][row];
  }
  if (is_there) numbers[(first + row) * k + first + column] = own;
}

/// The corner of a panel above its diagonal, which is stored separately. After the last row, it continues as
/// the identity matrix.
struct Corner {
  double numbers[kPanel][kPanel], diagonal[kPanel];

  __device__ void load(const double* from, int64_t k, int64_t first, const double* all) {
    const int64_t size = min(int64_t{kPanel}, k - first);
    for (int i = threadIdx.x; i < kPanel * kPanel; i += kThreads) {
      const int row = i / kPanel, column = i % kPanel;
      numbers[row][column] = row < column && column < size ? from[(first + row) * k + first + column] : 0;
    }
    for (int i = threadIdx.x; i < kPanel; i += kThreads) diagonal[i] = i < size ? all[first + i] : 1;
    __syncthreads();
  }
  /// Takes a column through the panel, beginning with its first row.
  __device__ void down(double (&column)[kPanel]) const {
#pragma unroll
    for (int i = 0; i < kPanel; ++i) {
      column[i] = column[i] / diagonal[i];
#pragma unroll
      for (int r = i + 1; r < kPanel; ++r) column[r] = column[r] - numbers[i][r] * column[i];
    }
  }
  /// Takes a column through the panel, from its last row upwards.
  __device__ void up(double (&column)[kPanel]) const {
#pragma unroll
    for (int i = kPanel - 1; i >= 0; --i) {
      column[i] = column[i] / diagonal[i];
#pragma unroll
      for (int r = 0; r < i; ++r) column[r] = column[r] - numbers[r][i] * column[i];
    }
  }
};

/// Takes columns of `to` [rows, columns] through a panel, beginning at column `begin`.
__global__ void __launch_bounds__(kThreads)
    panel_kernel(const double* numbers, int64_t k, int64_t first, const double* diagonal, double* to,
                 int64_t width, int64_t begin, int64_t end, bool is_down) {
  __shared__ Corner corner;
  corner.load(numbers, k, first, diagonal);
  const int64_t x = begin + int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (x >= end) return;
  const int64_t size = min(int64_t{kPanel}, k - first);
  double column[kPanel];
#pragma unroll
  for (int i = 0; i < kPanel; ++i) column[i] = i < size ? to[(first + i) * width + x] : 0;
  if (is_down) {
    corner.down(column);
  } else {
    corner.up(column);
  }
#pragma unroll
  for (int i = 0; i < kPanel; ++i) {
    if (i < size) to[(first + i) * width + x] = column[i];
  }
}

/// Computes rows [first, first + kPanel) of L^-1, from which the rows above are already subtracted.
__global__ void __launch_bounds__(kThreads)
    invert_kernel(double* numbers, int64_t k, int64_t first, const double* diagonal) {
  __shared__ Corner corner;
  corner.load(numbers, k, first, diagonal);
  const int64_t size = min(int64_t{kPanel}, k - first), x = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (x >= first + size) return;
  double column[kPanel];
#pragma unroll
  for (int i = 0; i < kPanel; ++i) column[i] = x < first && i < size ? numbers[(first + i) * k + x] : 0;
  const int64_t own = x - first;  // for a column of the corner, the row where it begins
#pragma unroll
  for (int i = 0; i < kPanel; ++i) {
    column[i] = (i == own ? 1 : column[i]) / corner.diagonal[i];
#pragma unroll
    for (int r = i + 1; r < kPanel; ++r) column[r] = column[r] - corner.numbers[i][r] * column[i];
  }
#pragma unroll
  for (int i = 0; i < kPanel; ++i) {
    if (i < size && i >= own) numbers[(first + i) * k + x] = column[i];
  }
}

/// Writes U from L^-1, which is on and below the diagonal. Rows and columns are reversed.
__global__ void factor_kernel(const double* numbers, int64_t k, float* factor) {
  const int64_t row = blockIdx.x, column = int64_t{blockIdx.y} * blockDim.x + threadIdx.x;
  if (column >= k) return;
  factor[row * k + column] =
      column < row ? 0 : static_cast<float>(numbers[(k - 1 - row) * k + k - 1 - column]);
}

/// Transposes rows [n, k] to columns [k, width], reversed, with zeros after the last row. Does the opposite
/// if `is_back` is true.
__global__ void columns_kernel(float* rows, int64_t n, int64_t k, double* columns, int64_t width,
                               bool is_back) {
  __shared__ double part[32][33];
  const int64_t row = int64_t{blockIdx.x} * 32, first = int64_t{blockIdx.y} * 32;
  const int lane = threadIdx.x % 32;
  if (is_back) {
    for (int i = threadIdx.x / 32; i < 32; i += 8) {
      if (first + i < k) part[i][lane] = columns[(first + i) * width + row + lane];
    }
    __syncthreads();
    for (int i = threadIdx.x / 32; i < 32; i += 8) {
      if (row + i < n && first + lane < k)
        rows[(row + i) * k + k - 1 - (first + lane)] = static_cast<float>(part[lane][i]);
    }
    return;
  }
  for (int i = threadIdx.x / 32; i < 32; i += 8) {
    part[i][lane] =
        row + i < n && first + lane < k ? double{rows[(row + i) * k + k - 1 - (first + lane)]} : 0;
  }
  __syncthreads();
  for (int i = threadIdx.x / 32; i < 32; i += 8) {
    if (first + i < k) columns[(first + i) * width + row + lane] = part[lane][i];
  }
}

int64_t parts(int64_t items, int64_t each) { return (items + each - 1) / each; }

dim3 grid_of(int64_t x, int64_t y) { return dim3(static_cast<unsigned>(x), static_cast<unsigned>(y)); }

}  // namespace

void DeviceFactor::factorize(const float* mean, int64_t k, double lambda, double shrink) {
  const auto side = static_cast<size_t>(k);
  numbers_.reserve(side * side * sizeof(double));
  diagonal_.reserve(side * sizeof(double) + sizeof(Refused));
  k_ = 0;  // 0 until there is a factor
  auto* const numbers = numbers_.as<double>();
  auto* const diagonal = diagonal_.as<double>();
  auto* const refused = reinterpret_cast<Refused*>(diagonal + k);
  Refused found{-1, 0};
  copy_to_device(&found, refused, sizeof found, stream_);
  clear_device_bytes(numbers, side * side * sizeof(double), stream_.get());  // tiles read below the diagonal
  launch(kWhere, stream_.get(), {grid_of(k, parts(k, 256)), 256}, reverse_kernel, mean, k, lambda, shrink,
         numbers);
  for (int64_t first = 0; first < k; first += kPanel) {
    const int64_t last = std::min(first + kPanel, k);
    subtract_products<double>(kWhere, stream_.get(),
                              {numbers + first, k, 1, numbers + first, k, numbers + first * k + first, k,
                               first, last - first, k - first});
    launch(kWhere, stream_.get(), {dim3(1), kPanel * kPanel}, corner_kernel, numbers, k, first, diagonal,
           refused);
    if (last < k)
      launch(kWhere, stream_.get(), {blocks_for(k - last, kThreads), kThreads}, panel_kernel, numbers, k,
             first, diagonal, numbers, k, last, k, true);
  }
  copy_to_host(refused, &found, sizeof found, stream_);
  if (found.at >= 0) throw_indefinite(k - 1 - found.at, found.pivot);
  k_ = k;
}

void DeviceFactor::write_factor(float* factor) {
  auto* const numbers = numbers_.as<double>();
  for (int64_t first = 0; first < k_; first += kPanel) {
    const int64_t last = std::min(first + kPanel, k_);
    subtract_products<double>(kWhere, stream_.get(),
                              {numbers + first, k_, 1, numbers, k_, numbers + first * k_, k_, first,
                               last - first, first, true, true});
    launch(kWhere, stream_.get(), {blocks_for(last, kThreads), kThreads}, invert_kernel, numbers, k_, first,
           diagonal_.as<double>());
  }
  launch(kWhere, stream_.get(), {grid_of(k_, parts(k_, 256)), 256}, factor_kernel, numbers, k_, factor);
  stream_.synchronize();
}

void DeviceFactor::multiply(std::span<float> rows) {
  twofour::check(k_ > 0 && rows.size() % static_cast<size_t>(k_) == 0, "a factor, and whole rows");
  const auto n = static_cast<int64_t>(rows.size()) / k_;
  if (n == 0) return;
  const int64_t k = k_, width = parts(n, kProductColumns) * kProductColumns;
  rows_.reserve(rows.size_bytes());
  columns_.reserve(static_cast<size_t>(k * width) * sizeof(double));
  const auto* const numbers = numbers_.as<double>();
  auto* const x = columns_.as<double>();
  copy_to_device(rows.data(), rows_.as(), rows.size_bytes(), stream_);
  const Launch turn{grid_of(width / 32, parts(k, 32)), 256};
  launch(kWhere, stream_.get(), turn, columns_kernel, rows_.as<float>(), n, k, x, width, false);
  const auto pass = [&](int64_t first, bool is_down) {
    launch(kWhere, stream_.get(), {blocks_for(width, kThreads), kThreads}, panel_kernel, numbers, k, first,
           diagonal_.as<double>(), x, width, int64_t{0}, width, is_down);
  };
  for (int64_t first = 0; first < k; first += kPanel) {
    const int64_t last = std::min(first + kPanel, k);
    pass(first, true);
    subtract_products<double>(kWhere, stream_.get(),
                              {numbers + first * k + last, k, 1, x + first * width, width, x + last * width,
                               width, last - first, k - last, width});
  }
  for (int64_t first = (k - 1) / kPanel * kPanel; first >= 0; first -= kPanel) {
    const int64_t last = std::min(first + kPanel, k);
    pass(first, false);
    subtract_products<double>(
        kWhere, stream_.get(),
        {numbers + last - 1, -1, k, x + (last - 1) * width, -width, x, width, last - first, first, width});
  }
  launch(kWhere, stream_.get(), turn, columns_kernel, rows_.as<float>(), n, k, x, width, true);
  copy_to_host(rows_.as(), rows.data(), rows.size_bytes(), stream_);
}

}  // namespace twofour::cuda
