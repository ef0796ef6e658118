#include <algorithm>

#include "kernels/device/isa.h"
#include "kernels/floats/float_ops.h"
#include "lib/base/threads/parallel.h"
#include "lib/run/gradients/blocks.h"

namespace twofour {
namespace {

constexpr int64_t kTileRows = 256, kTileColumns = 192;

/// The number of rows that are decoded at once by a thread.
int64_t rows_at_once(const ModelWeights& weights, const ModelMatrix& w) {
  if (weights.stored(w).module.reads_across()) return w.n;
  return std::clamp<int64_t>((int64_t{64} << 10) / w.k / 16 * 16, 16, 1024);
}

}  // namespace

void add_input_gradient(const ModelWeights& weights, const ModelMatrix& w, const float* dy, int64_t m,
                        float* dx) {
  if (m == 0) return;
  const int64_t rows = rows_at_once(weights, w), k = w.k;
  const int64_t most = std::max(rows, ModelWeights::kChunkBytes / int64_t{sizeof(float)} / k / rows * rows);
  const FloatOps& ops = float_ops(best_isa());
  std::vector<float> chunk;
  for (int64_t n0 = 0; n0 < w.n; n0 += most) {
    const int64_t count = std::min(most, w.n - n0);
    chunk.resize(static_cast<size_t>(count * k));
    parallel_for(static_cast<size_t>((count + rows - 1) / rows), [&](size_t strip) {
      const int64_t begin = static_cast<int64_t>(strip) * rows, end = std::min(count, begin + rows);
      weights.read_rows(
          w, n0 + begin, n0 + end,
          std::span(chunk).subspan(static_cast<size_t>(begin * k), static_cast<size_t>((end - begin) * k)));
    });
    const int64_t down = (m + kTileRows - 1) / kTileRows, across = (k + kTileColumns - 1) / kTileColumns;
#pragma omp parallel for schedule(dynamic) if (down * across > 1)
    for (int64_t tile = 0; tile < down * across; ++tile) {
      const int64_t i = tile % down * kTileRows, j = tile / down * kTileColumns;
      const int64_t height = std::min(kTileRows, m - i), width = std::min(kTileColumns, k - j);
      std::vector<float> products(static_cast<size_t>(height * width));
      ops.multiply_columns(height, width, count, {dy + i * w.n + n0, w.n}, {chunk.data() + j, k},
                           products.data(), width);
      for (int64_t row = 0; row < height; ++row) {
        const float* from = products.data() + row * width;
        float* to = dx + (i + row) * k + j;
        for (int64_t column = 0; column < width; ++column) to[column] += from[column];
      }
    }
  }
}

}  // namespace twofour
