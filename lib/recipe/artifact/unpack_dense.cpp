#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "formats/atom.h"
#include "formats/error.h"
#include "formats/layouts/layouts.h"
#include "lib/recipe/artifact/unpack.h"

namespace twofour {

template <class L>
void ArtifactUnpacker::unpack_dense_codes(const Rows& rows, const OutputRange& range) {
  const Shape all = rows.matrix.shape, one{1, all.n, all.k, all.gated};
  const size_t tensor = rows.matrix.parts[static_cast<size_t>(part_of<L>(0))];
  const int64_t width = all.k / 2, expert = rows.e * L::part(part_of<L>(0), one).bytes();
  const auto offset = [&](int64_t i) { return offset_of<L>(one, rows.n + i, 0, 0); };
  const bool whole = rows.c0 == 0 && rows.c1 == width;
  /// The number of rows from row i on, at most `most`, that are contiguous in the artifact.
  const auto run_from = [&](int64_t i, int64_t most) {
    int64_t count = 1;
    while (whole && count < most && offset(i + count) == offset(i) + count * width) ++count;
    return count;
  };
  if (!range.k_outer) {
    for (int64_t i = 0; i < rows.count;) {
      const bool together = rows.step == 1 && range.pitch == width;
      const int64_t count = together ? run_from(i, rows.count - i) : 1;
      const int64_t at = (rows.row + i * rows.step - range.line) * range.pitch + rows.c0 - range.first;
      const int64_t lo = std::max(at, range.begin);
      const int64_t hi = std::min(at + (together ? count * width : rows.c1 - rows.c0), range.end);
      if (lo < hi) {
        artifact_.read(tensor, static_cast<uint64_t>(expert + offset(i) + rows.c0 + lo - at),
                       {range.to + (lo - range.begin), static_cast<size_t>(hi - lo)});
      }
      i += count;
    }
    return;
  }
  const int64_t cols = rows.c1 - rows.c0;
  const int64_t step = std::max<int64_t>(1, load_ / cols);
  for (int64_t i0 = 0; i0 < rows.count; i0 += step) {
    const int64_t height = std::min(step, rows.count - i0);
    loaded_.resize(std::max(loaded_.size(), static_cast<size_t>(height * cols)));
    for (int64_t i = 0; i < height;) {
      const int64_t count = run_from(i0 + i, height - i);
      artifact_.read(tensor, static_cast<uint64_t>(expert + offset(i0 + i) + rows.c0),
                     {&loaded_[static_cast<size_t>(i * cols)], static_cast<size_t>(count * cols)});
      i += count;
    }
    put_block(rows, i0, height, rows.c0, cols, loaded_.data(), cols, range);
  }
}

template <class L>
void ArtifactUnpacker::unpack_dense_scales(const Rows& rows, const OutputRange& range) {
  constexpr int kByte = sizeof(DenseGroup) - 1;
  constexpr int64_t kRun = 4;
  const Shape all = rows.matrix.shape;
  const int p = part_of<L>(kByte);
  const size_t tensor = rows.matrix.parts[static_cast<size_t>(p)];
  const int64_t expert = rows.e * L::part(p, {1, all.n, all.k, all.gated}).bytes();
  // Stored rows alternate between gate and up, so a piece of them has the same number of each.
  const int64_t share = all.gated ? 2 : 1, half = rows.n >= all.n / share ? 1 : 0;
  const int64_t grain = L::part(p, {1, kTileAlignment, all.k, all.gated}).bytes();
  const int64_t step = std::max<int64_t>(1, load_ / grain) * kTileAlignment, cols = rows.c1 - rows.c0;
  const int64_t begin = rows.n - half * all.n / share, end = begin + rows.count;
  for (int64_t i = begin; i < end;) {
    const int64_t r0 = i * share / step * step;
    const Shape piece{1, std::min(step, all.n - r0), all.k, all.gated};
    const int64_t first = expert + bytes_before<L>(p, {1, r0, all.k, all.gated});
    loaded_.resize(std::max(loaded_.size(), static_cast<size_t>(L::part(p, piece).bytes())));
    artifact_.read(tensor, static_cast<uint64_t>(first),
                   {loaded_.data(), static_cast<size_t>(L::part(p, piece).bytes())});
    check_padding<L>(rows.matrix, rows.e, first - expert, piece);
    const int64_t stop = std::min(end, (r0 + piece.n) / share);
    rows_.resize(std::max(rows_.size(), static_cast<size_t>((stop - i) * cols)));
    for (int64_t r = i; r < stop; ++r) {
      const int64_t n = half * piece.n / share + r - r0 / share;
      uint8_t* to = &rows_[static_cast<size_t>((r - i) * cols)];
      for (int64_t g = rows.c0; g < rows.c1;) {
        const int64_t count = std::min(rows.c1, (g / kRun + 1) * kRun) - g;
        std::memcpy(to + (g - rows.c0), &loaded_[static_cast<size_t>(offset_of<L>(piece, n, g, kByte))],
                    static_cast<size_t>(count));
        g += count;
      }
    }
    put_block(rows, i - begin, stop - i, rows.c0, cols, rows_.data(), cols, range);
    i = stop;
  }
}

/// Throws Error on padding that is not zero. `first` is the offset of the loaded piece in its expert's part.
template <class L>
void ArtifactUnpacker::check_padding(const ArtifactMatrix& matrix, int64_t e, int64_t first,
                                     Shape shape) const {
  const int p = part_of<L>(sizeof(DenseGroup) - 1);
  const Part part = L::part(p, shape);
  if (part.bytes() == shape.n * shape.groups()) return;
  // The positions that a matrix without padding would fill. This shape is not gated, so it pairs no rows.
  const Shape filled{1, part.rows, part.cols * kGroup};
  for (int64_t n = 0; n < part.rows; ++n) {
    for (int64_t g = n < shape.n ? shape.groups() : 0; g < part.cols; ++g) {
      const int64_t at = offset_of<L>(filled, n, g, sizeof(DenseGroup) - 1);
      const uint8_t byte = loaded_[static_cast<size_t>(at)];
      if (byte == 0) continue;
      throw Error(fmt::format("{}: expert {}, row {}, column {}: expected 0x00 as padding, found 0x{:02X}",
                              artifact_.where(matrix.parts[static_cast<size_t>(p)]), e,
                              (first + at) / part.cols, (first + at) % part.cols, byte));
    }
  }
}

void ArtifactUnpacker::unpack_dense_rows(const Rows& rows, const OutputRange& range) {
  with_layout(rows.matrix.layout, [&]<class L>() {
    if constexpr (std::is_same_v<typename L::Atom, DenseGroup>) {
      static_assert(L::outer == Axis::kN);
      rows.field == Field::kCodes ? unpack_dense_codes<L>(rows, range) : unpack_dense_scales<L>(rows, range);
    }
  });
}

}  // namespace twofour
