#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>

#include "formats/atom.h"
#include "formats/error.h"
#include "formats/layouts/layouts.h"
#include "lib/recipe/artifact/unpack.h"

namespace twofour {
namespace {

/// Pieces along K begin at multiples of this number of groups.
constexpr int64_t kGroupGrain = kTileAlignment / kGroup;
/// Bytes of a SparseGroup that hold codes: comp and meta.
constexpr int kCodeBytes = 6;
constexpr int kScaleByte = sizeof(SparseGroup) - 1;

/// The four codes of a quad in 16 bits, by its metadata nibble and its byte of stored codes.
constexpr auto kExpanded = [] {
  std::array<std::array<uint16_t, 256>, 16> table{};
  for (unsigned meta = 0; meta < 16; ++meta) {
    for (unsigned comp = 0; comp < 256; ++comp) {
      table[meta][comp] =
          static_cast<uint16_t>(expand_2_4({static_cast<uint8_t>(comp), static_cast<uint8_t>(meta)}));
    }
  }
  return table;
}();

constexpr bool is_legal_meta_byte(unsigned byte) {
  return is_legal_meta(byte & 15) && is_legal_meta(byte >> 4);
}

}  // namespace

/// Points lines_ at the lines of groups [g0, g1) that the field needs. There is a line for each byte of a
/// group and each copy of it.
template <class L>
void ArtifactUnpacker::load_lines(const Rows& rows, int64_t g0, int64_t g1) {
  const bool codes = rows.field == Field::kCodes;
  const int per_group = codes ? kCodeBytes : L::copies(kScaleByte);
  const Shape all = rows.matrix.shape, one{1, all.n, all.k, all.gated};
  lines_.resize(static_cast<size_t>((g1 - g0) * per_group));
  const auto byte_of = [&](int j) { return codes ? j : kScaleByte; };
  const auto copy_of = [&](int j) { return codes ? 0 : j; };
  const auto read = [&](int p, int64_t offset, uint8_t* to, int64_t bytes) {
    artifact_.read(rows.matrix.parts[static_cast<size_t>(p)],
                   static_cast<uint64_t>(rows.e * L::part(p, one).bytes() + offset),
                   {to, static_cast<size_t>(bytes)});
  };
  if (2 * rows.count < all.n) {  // parts of lines
    loaded_.resize(lines_.size() * static_cast<size_t>(rows.count));
    for (size_t i = 0; i < lines_.size(); ++i) {
      const int j = static_cast<int>(i) % per_group;
      const int64_t g = g0 + static_cast<int64_t>(i) / per_group;
      uint8_t* to = &loaded_[i * static_cast<size_t>(rows.count)];
      read(part_of<L>(byte_of(j), copy_of(j)), offset_of<L>(one, rows.n, g, byte_of(j), copy_of(j)), to,
           rows.count);
      lines_[i] = to;
    }
    return;
  }
  // These are whole lines, which form one run in each part.
  const int64_t first = g0 / kGroupGrain * kGroupGrain;
  const int64_t last = std::min(all.groups(), (g1 + kGroupGrain - 1) / kGroupGrain * kGroupGrain);
  const Shape piece{1, all.n, (last - first) * kGroup, all.gated};
  std::array<int64_t, L::part_count> begins{};
  int64_t total = 0;
  for (int p = 0; p < L::part_count; ++p) {
    begins[static_cast<size_t>(p)] = total;
    bool needed = false;
    for (int j = 0; j < per_group; ++j) needed = needed || part_of<L>(byte_of(j), copy_of(j)) == p;
    if (!needed) continue;
    const int64_t bytes = L::part(p, piece).bytes();
    loaded_.resize(std::max(loaded_.size(), static_cast<size_t>(total + bytes)));
    read(p, bytes_before<L>(p, {1, all.n, first * kGroup, all.gated}), &loaded_[static_cast<size_t>(total)],
         bytes);
    total += bytes;
  }
  for (size_t i = 0; i < lines_.size(); ++i) {
    const int j = static_cast<int>(i) % per_group, p = part_of<L>(byte_of(j), copy_of(j));
    const int64_t g = g0 - first + static_cast<int64_t>(i) / per_group;
    lines_[i] = loaded_.data() + begins[static_cast<size_t>(p)] +
                offset_of<L>(piece, rows.n, g, byte_of(j), copy_of(j));
  }
}

/// Throws Error on metadata that are not two ascending positions, and on copies of a block scale that differ.
template <class L>
void ArtifactUnpacker::check_lines(const Rows& rows, int64_t g0, int64_t g1) const {
  const Shape one{1, rows.matrix.shape.n, rows.matrix.shape.k, rows.matrix.shape.gated};
  const auto where = [&](int byte, int64_t g, int64_t i, int copy) {
    const Stored s = L::place(one, {0, rows.n + i, g, byte}, copy);
    return fmt::format("{}: expert {}, row {}, n {}",
                       artifact_.where(rows.matrix.parts[static_cast<size_t>(s.part)]), rows.e, s.at.row,
                       rows.n + i);
  };
  for (int64_t g = g0; g < g1; ++g) {
    if (rows.field == Field::kCodes) {
      for (int byte = 4; byte < kCodeBytes; ++byte) {
        const uint8_t* meta = lines_[static_cast<size_t>((g - g0) * kCodeBytes + byte)];
        unsigned bad = 0;
        for (int64_t i = 0; i < rows.count; ++i) bad |= unsigned{!is_legal_meta_byte(meta[i])};
        if (bad == 0) continue;
        const int64_t i = std::find_if_not(meta, meta + rows.count, is_legal_meta_byte) - meta;
        throw Error(fmt::format(
            "{}: expected two ascending positions in each half of the metadata byte, found 0x{:02X}",
            where(byte, g, i, 0), meta[i]));
      }
      continue;
    }
    constexpr int copies = L::copies(kScaleByte);
    const auto* line = &lines_[static_cast<size_t>((g - g0) * copies)];
    for (int copy = 1; copy < copies; ++copy) {
      if (std::memcmp(line[0], line[copy], static_cast<size_t>(rows.count)) == 0) continue;
      const int64_t i = std::mismatch(line[0], line[0] + rows.count, line[copy]).first - line[0];
      throw Error(fmt::format("{}: expected the block scale 0x{:02X} of its other copy, found 0x{:02X}",
                              where(kScaleByte, g, i, copy), line[0][i], line[copy][i]));
    }
  }
}

/// Writes the codes of each quad, which are a low and a high byte. Goes row by row in blocks, or line by line
/// if K is the outermost dimension of the module.
void ArtifactUnpacker::put_sparse_codes(const Rows& rows, int64_t g0, int64_t g1, const OutputRange& range) {
  const auto lines_of = [&](int64_t g) { return &lines_[static_cast<size_t>((g - g0) * kCodeBytes)]; };
  if (range.k_outer) {
    rows_.resize(std::max(rows_.size(), static_cast<size_t>(2 * rows.count)));
    uint8_t *low = rows_.data(), *high = low + rows.count;
    for (int64_t g = g0; g < g1; ++g) {
      for (int q = 0; q < 4; ++q) {
        const uint8_t *comp = lines_of(g)[q], *meta = lines_of(g)[4 + q / 2];
        for (int64_t i = 0; i < rows.count; ++i) {
          const unsigned four = kExpanded[(meta[i] >> 4 * (q % 2)) & 15][comp[i]];
          low[i] = static_cast<uint8_t>(four);
          high[i] = static_cast<uint8_t>(four >> 8);
        }
        range.put_column(rows.row, rows.step, 8 * g + 2 * q, low, rows.count);
        range.put_column(rows.row, rows.step, 8 * g + 2 * q + 1, high, rows.count);
      }
    }
    return;
  }
  uint8_t block[kBlockRows][kBlockCols];
  for (int64_t b0 = g0; b0 < g1; b0 += kBlockCols / 8) {
    const int64_t width = std::min(kBlockCols / 8, g1 - b0);
    for (int64_t i = 0; i < rows.count; i += kBlockRows) {
      const int64_t height = std::min(kBlockRows, rows.count - i);
      for (int64_t g = 0; g < width; ++g) {
        for (int half = 0; half < 2; ++half) {
          const auto* lines = lines_of(b0 + g);
          const uint8_t *even = lines[2 * half] + i, *odd = lines[2 * half + 1] + i,
                        *meta = lines[4 + half] + i;
          for (int64_t r = 0; r < height; ++r) {
            uint8_t* to = &block[r][8 * g + 4 * half];
            const unsigned first = kExpanded[meta[r] & 15][even[r]], second = kExpanded[meta[r] >> 4][odd[r]];
            to[0] = static_cast<uint8_t>(first);
            to[1] = static_cast<uint8_t>(first >> 8);
            to[2] = static_cast<uint8_t>(second);
            to[3] = static_cast<uint8_t>(second >> 8);
          }
        }
      }
      put_block(rows, i, height, 8 * b0, 8 * width, block[0], kBlockCols, range);
    }
  }
}

void ArtifactUnpacker::put_sparse_scales(const Rows& rows, int64_t g0, int64_t g1, int copies,
                                         const OutputRange& range) {
  const auto line_of = [&](int64_t g) { return lines_[static_cast<size_t>((g - g0) * copies)]; };
  if (range.k_outer) {
    for (int64_t g = g0; g < g1; ++g) range.put_column(rows.row, rows.step, g, line_of(g), rows.count);
    return;
  }
  uint8_t block[kBlockRows][kBlockCols];
  for (int64_t b0 = g0; b0 < g1; b0 += kBlockCols) {
    const int64_t width = std::min(kBlockCols, g1 - b0);
    for (int64_t i = 0; i < rows.count; i += kBlockRows) {
      const int64_t height = std::min(kBlockRows, rows.count - i);
      for (int64_t g = 0; g < width; ++g) {
        const uint8_t* line = line_of(b0 + g) + i;
        for (int64_t r = 0; r < height; ++r) block[r][g] = line[r];
      }
      put_block(rows, i, height, b0, width, block[0], kBlockCols, range);
    }
  }
}

template <class L>
void ArtifactUnpacker::unpack_sparse(const Rows& rows, const OutputRange& range) {
  const bool codes = rows.field == Field::kCodes;
  const Shape all = rows.matrix.shape;
  // The smallest number of bytes, of all parts together, that load_lines loads at once.
  const Shape grain{1, 2 * rows.count < all.n ? rows.count : all.n, kTileAlignment, all.gated};
  int64_t grain_bytes = 0;
  for (int p = 0; p < L::part_count; ++p) grain_bytes += L::part(p, grain).bytes();
  const int64_t step = std::max<int64_t>(1, load_ / grain_bytes) * kGroupGrain;
  const int64_t end = codes ? (rows.c1 + 7) / 8 : rows.c1;
  for (int64_t g0 = codes ? rows.c0 / 8 : rows.c0; g0 < end;) {
    const int64_t g1 = std::min(end, g0 / kGroupGrain * kGroupGrain + step);
    load_lines<L>(rows, g0, g1);
    check_lines<L>(rows, g0, g1);
    if (codes) {
      put_sparse_codes(rows, g0, g1, range);
    } else {
      put_sparse_scales(rows, g0, g1, L::copies(kScaleByte), range);
    }
    g0 = g1;
  }
}

void ArtifactUnpacker::unpack_sparse_rows(const Rows& rows, const OutputRange& range) {
  with_layout(rows.matrix.layout, [&]<class L>() {
    if constexpr (std::is_same_v<typename L::Atom, SparseGroup>) {
      static_assert(L::outer == Axis::kK);
      unpack_sparse<L>(rows, range);
    }
  });
}

}  // namespace twofour
