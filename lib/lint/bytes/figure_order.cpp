#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "lib/lint/bytes/figures.h"

namespace twofour {
namespace {

/// Returns the share of the variance of cells [rows, cols] that the means of rows and columns explain beyond
/// noise.
float explained(const uint8_t* cells, uint64_t rows, uint64_t cols) {
  if (rows < 4 || cols < 4) return 0;
  double sum = 0, squares = 0, by_rows = 0, by_cols = 0;
  // A sum of up to 256 bytes fits into 16 bits.
  constexpr uint64_t kShort = 256;
  std::vector<uint32_t> col_sums(cols);
  std::vector<uint16_t> short_sums(cols);
  for (uint64_t r = 0; r < rows; ++r) {
    const SquareSums line = best_count_ops().squares(cells + r * cols, cols, short_sums.data());
    const auto row = static_cast<double>(line.sum);
    sum += row;
    squares += static_cast<double>(line.squares);
    by_rows += row * row;
    if (r % kShort != kShort - 1 && r != rows - 1) continue;
    for (uint64_t c = 0; c < cols; ++c) col_sums[c] += std::exchange(short_sums[c], uint16_t{0});
  }
  for (uint64_t c = 0; c < cols; ++c) by_cols += double{static_cast<double>(col_sums[c])} * col_sums[c];
  const auto r = static_cast<double>(rows), c = static_cast<double>(cols), n = r * c;
  const double base = sum * sum / n, total = squares - base;
  if (total <= 0) return 0;
  const double rest = total - (by_rows / c - base) - (by_cols / r - base);
  return static_cast<float>(1 - (rest / ((r - 1) * (c - 1))) / (total / (n - 1)));
}

/// Returns the standard deviation of explained() for cells of noise.
float explained_error(uint64_t rows, uint64_t cols) {
  const auto r = static_cast<double>(rows), c = static_cast<double>(cols);
  return static_cast<float>(std::sqrt(2 * (r + c)) / (r * c));
}

}  // namespace

void FigureCounter::measure_order(std::span<const uint8_t> scales) {
  const uint64_t s = plan_.scale_bytes, n = plan_.lines;
  if (plan_.k_outer || !plan_.is_rows || s < 8) return;
  // A tile has 128 rows and four columns, which are 512 bytes. In up to four rows of tiles, the first tiles
  // are read, which have 32 columns together. They are read as stored rows and as tiles. E4M3 bytes grow with
  // the logarithms of their values.
  constexpr uint64_t kRows = 128, kColumns = 32, kMostTiles = 4;
  const uint64_t columns = std::min(s, kColumns), rows = kRows * columns / s;
  if (s % 4 == 0 && rows >= 4 && scales.size() >= kRows * s) {
    const uint64_t tiles = std::min(s < kColumns ? kMostTiles : kMostTiles / 2, scales.size() / (kRows * s));
    std::vector<uint8_t> lines, tile(kRows * columns);
    for (uint64_t t = 0; t < tiles; ++t) {
      const uint8_t* first = scales.data() + t * kRows * s;
      lines.insert(lines.end(), first, first + rows * s);
      for (uint64_t c = 0; c < columns; c += 4) {
        for (uint64_t r = 0; r < kRows; ++r)
          std::memcpy(&tile[r * columns + c], first + c * kRows + r % 32 * 16 + r / 32 * 4, 4);
      }
      sums_.swizzled.otherwise += explained(tile.data(), kRows, columns) / static_cast<float>(tiles);
    }
    sums_.swizzled.as_stored = explained(lines.data(), tiles * rows, s);
    sums_.swizzled.error = explained_error(kRows, columns) / std::sqrt(static_cast<float>(tiles));
  }
  // Transposed scales are [S, N]. Some of the first rows are read.
  const uint64_t turned = std::min<uint64_t>(scales.size() / n, 4096 / n + 8);
  if (n >= 8 && turned >= 8) {
    sums_.transposed = {explained(scales.data(), turned * n / s, s), explained(scales.data(), turned, n),
                        explained_error(turned, n)};
  }
}

}  // namespace twofour
