#include "kernels/floats/float_multiply.h"

#include <algorithm>
#include <vector>

#include "kernels/floats/float_ops.h"

namespace twofour::cpu {

void multiply(const float* x, int64_t m, const float* w, int64_t n, int64_t k, float* out, int64_t stride,
              Isa isa) {
  constexpr int64_t kRows = 256, kColumns = 192;
  const FloatOps& ops = float_ops(isa);
  const int64_t down = (m + kRows - 1) / kRows, across = (n + kColumns - 1) / kColumns;
#pragma omp parallel for schedule(dynamic) if (down * across > 1)
  for (int64_t item = 0; item < down * across; ++item) {
    const int64_t i = item % down * kRows, j = item / down * kColumns;
    ops.multiply_rows(std::min(kRows, m - i), std::min(kColumns, n - j), k, {x + i * k, k}, {w + j * k, k},
                      out + i * stride + j, stride);
  }
}

namespace {

constexpr int64_t kTurnedRows = 512;  // rows that are multiplied at a time
constexpr int64_t kTile = 128;

int64_t tiles_of(int64_t width) { return (width + kTile - 1) / kTile; }

/// Transposes `rows` rows `x` [rows, k], in squares whose rows and columns are whole cache lines.
void turn(const float* x, int64_t rows, int64_t k, std::vector<float>& turned) {
  constexpr int64_t kSquare = 16;
  turned.resize(static_cast<size_t>(k * rows));
#pragma omp parallel for schedule(static) if (k * rows > 4096)
  for (int64_t left = 0; left < k; left += kSquare) {
    const int64_t right = std::min(left + kSquare, k);
    for (int64_t first = 0; first < rows; first += kSquare) {
      const int64_t last = std::min(first + kSquare, rows);
      for (int64_t j = left; j < right; ++j) {
        for (int64_t i = first; i < last; ++i) turned[static_cast<size_t>(j * rows + i)] = x[i * k + j];
      }
    }
  }
}

}  // namespace

void add_products(const float* x, int64_t m, int64_t k, float* sums, Isa isa) {
  const FloatOps& ops = float_ops(isa);
  const int64_t tiles = tiles_of(k);
  std::vector<float> turned;
  for (int64_t first = 0; first < m; first += kTurnedRows) {
    const int64_t rows = std::min(kTurnedRows, m - first);
    turn(x + first * k, rows, k, turned);
#pragma omp parallel for schedule(dynamic) if (tiles > 1)
    for (int64_t tile = 0; tile < tiles * tiles; ++tile) {
      const int64_t i0 = tile / tiles * kTile, j0 = tile % tiles * kTile;
      if (j0 < i0) continue;
      const int64_t height = std::min(kTile, k - i0), width = std::min(kTile, k - j0);
      float products[kTile * kTile];
      ops.multiply_rows(height, width, rows, {turned.data() + i0 * rows, rows},
                        {turned.data() + j0 * rows, rows}, products, kTile);
      for (int64_t i = 0; i < height; ++i) {
        for (int64_t j = i0 == j0 ? i : 0; j < width; ++j)
          sums[(i0 + i) * k + j0 + j] += products[i * kTile + j];
      }
    }
  }
}

void add_cross_products(const float* a, int64_t n, const float* b, int64_t k, int64_t m, float* sums,
                        Isa isa) {
  const FloatOps& ops = float_ops(isa);
  const int64_t down = tiles_of(n), across = tiles_of(k);
  std::vector<float> left, right;
  for (int64_t first = 0; first < m; first += kTurnedRows) {
    const int64_t rows = std::min(kTurnedRows, m - first);
    turn(a + first * n, rows, n, left);
    turn(b + first * k, rows, k, right);
#pragma omp parallel for schedule(dynamic) if (down * across > 1)
    for (int64_t tile = 0; tile < down * across; ++tile) {
      const int64_t i0 = tile / across * kTile, j0 = tile % across * kTile;
      const int64_t height = std::min(kTile, n - i0), width = std::min(kTile, k - j0);
      float products[kTile * kTile];
      ops.multiply_rows(height, width, rows, {left.data() + i0 * rows, rows},
                        {right.data() + j0 * rows, rows}, products, kTile);
      for (int64_t i = 0; i < height; ++i) {
        for (int64_t j = 0; j < width; ++j) sums[(i0 + i) * k + j0 + j] += products[i * kTile + j];
      }
    }
  }
}

}  // namespace twofour::cpu
