#include "lib/recipe/artifact/unpack.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "formats/atom.h"
#include "formats/layouts/layouts.h"

namespace twofour {
namespace {

/// Rows that are unpacked together.
constexpr int64_t kRowChunk = 8192;

}  // namespace

void OutputRange::put_row(int64_t row, int64_t col, const uint8_t* from, int64_t count) const {
  const int64_t at = (row - line) * pitch + col - first;
  const int64_t lo = std::max(at, begin), hi = std::min(at + count, end);
  if (lo < hi) std::memcpy(to + (lo - begin), from + (lo - at), static_cast<size_t>(hi - lo));
}

void OutputRange::put_column(int64_t row, int64_t step, int64_t col, const uint8_t* from,
                             int64_t count) const {
  const int64_t at = (col - line) * pitch + row - first;
  if (step == 1) {
    const int64_t lo = std::max(at, begin), hi = std::min(at + count, end);
    if (lo < hi) std::memcpy(to + (lo - begin), from + (lo - at), static_cast<size_t>(hi - lo));
    return;
  }
  const int64_t lo = at >= begin ? 0 : (begin - at + step - 1) / step;
  const int64_t hi = at >= end ? 0 : std::min(count, (end - at + step - 1) / step);
  for (int64_t i = lo; i < hi; ++i) to[at + i * step - begin] = from[i];
}

void ArtifactUnpacker::unpack(const SourceLinear& m, Field field, int64_t e, const Box& box,
                              const OutputRange& range) {
  const ArtifactMatrix& matrix = modules_.matrices[m.matrix];
  for (const RowRun& run : m.rows) {
    const auto count_before = [&](int64_t row) {
      return std::clamp<int64_t>((row - run.first + run.step - 1) / run.step, 0, run.count);
    };
    const int64_t end = box.r1 > run.first ? count_before(box.r1) : 0;
    for (int64_t i = box.r0 > run.first ? count_before(box.r0) : 0; i < end; i += kRowChunk) {
      const Rows rows{matrix,
                      field,
                      m.first_expert + e,
                      run.n0 + i,
                      run.first + i * run.step,
                      run.step,
                      std::min(kRowChunk, end - i),
                      box.c0,
                      box.c1};
      with_layout(matrix.layout, [&]<class L>() {
        constexpr bool is_sparse = std::is_same_v<typename L::Atom, SparseGroup>;
        is_sparse ? unpack_sparse_rows(rows, range) : unpack_dense_rows(rows, range);
      });
    }
  }
}

/// Writes rows [i, i + count) and columns [col, col + cols) from `from`, in which K is contiguous and rows
/// are `pitch` bytes apart.
void ArtifactUnpacker::put_block(const Rows& rows, int64_t i, int64_t count, int64_t col, int64_t cols,
                                 const uint8_t* from, int64_t pitch, const OutputRange& range) const {
  if (!range.k_outer) {
    for (int64_t r = 0; r < count; ++r)
      range.put_row(rows.row + (i + r) * rows.step, col, from + r * pitch, cols);
    return;
  }
  uint8_t turned[kBlockCols][kBlockRows];
  for (int64_t r0 = 0; r0 < count; r0 += kBlockRows) {
    const int64_t height = std::min(kBlockRows, count - r0);
    for (int64_t c0 = 0; c0 < cols; c0 += kBlockCols) {
      const int64_t width = std::min(kBlockCols, cols - c0);
      for (int64_t r = 0; r < height; ++r) {
        for (int64_t c = 0; c < width; ++c) turned[c][r] = from[(r0 + r) * pitch + c0 + c];
      }
      for (int64_t c = 0; c < width; ++c)
        range.put_column(rows.row + (i + r0) * rows.step, rows.step, col + c0 + c, turned[c], height);
    }
  }
}

}  // namespace twofour
