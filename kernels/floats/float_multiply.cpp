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

void add_products(const float* x, int64_t m, int64_t k, float* sums, Isa isa) {
  constexpr int64_t kRows = 512, kTile = 128;
  const FloatOps& ops = float_ops(isa);
  const int64_t tiles = (k + kTile - 1) / kTile;
  std::vector<float> turned(static_cast<size_t>(k * std::min(m, kRows)));
  for (int64_t first = 0; first < m; first += kRows) {
    const int64_t rows = std::min(kRows, m - first);
#pragma omp parallel for schedule(static) if (k * rows > 4096)
    for (int64_t j = 0; j < k; ++j) {
      for (int64_t i = 0; i < rows; ++i) turned[static_cast<size_t>(j * rows + i)] = x[(first + i) * k + j];
    }
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

}  // namespace twofour::cpu
