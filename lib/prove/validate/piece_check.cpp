#include "lib/prove/validate/piece_check.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <mutex>
#include <type_traits>

#include "formats/e2m1.h"
#include "formats/e4m3.h"
#include "formats/layouts/layouts.h"
#include "lib/base/io/hash.h"

namespace twofour {
namespace {

/// The order of derived bytes. It is chosen so that the map of a layout has long runs. Bytes of one kind are
/// consecutive for neighbouring rows if K is outer, otherwise for neighbouring groups of a row. The last byte
/// of an atom is its scale; all other bytes are evenly spaced.
template <class Layout>
struct DerivedOrder {
  using Atom = typename Layout::Atom;
  static constexpr bool kOuter = Layout::outer == Axis::kK;
  static constexpr bool kSparse = std::is_same_v<Atom, SparseGroup>;
  static constexpr int kBytes = sizeof(Atom);
  /// The number of bytes in an atom's field. The next function returns the number of bytes before the field.
  static constexpr int width(int byte) { return byte < kBytes - 1 ? kBytes - 1 : 1; }
  static constexpr int before(int byte) { return byte < kBytes - 1 ? 0 : kBytes - 1; }
  static int64_t at(Shape s, int64_t n, int64_t group, int byte) {
    if constexpr (kOuter) return (group * kBytes + byte) * s.n + n;
    return before(byte) * s.n * s.groups() + (n * s.groups() + group) * width(byte) + byte - before(byte);
  }
};

/// The result of the 2:4 rule for four codes. The rule depends only on magnitudes, so 4096 entries suffice,
/// which fit into a core's first cache. The fields share one 64-bit number. Adding entries adds the fields
/// below kMeta.
struct Quad {
  static constexpr int kKept = 16, kTied = 32, kZeros = 40, kMeta = 48;
  uint64_t bits;
  uint32_t meta() const { return static_cast<uint32_t>(bits >> kMeta); }
  /// The codes that stay among `codes`, whose magnitudes are the index of this entry. The code with lower k
  /// is in the low nibble.
  uint32_t comp(uint32_t codes) const {
    const uint32_t first = 4 * (meta() & 3u), second = 4 * (meta() >> 2);
    return ((codes >> first) & 15u) | ((codes >> second) & 15u) << 4;
  }
};

/// The magnitudes of four quads of 16 bits. Each quad becomes 12 bits in its place.
uint64_t magnitudes(uint64_t codes) {
  const uint64_t pairs = (codes & 0x0707070707070707u) | (codes >> 1 & 0x3838383838383838u);
  return (pairs & 0x003F003F003F003Fu) | (pairs >> 2 & 0x0FC00FC00FC00FC0u);
}

const std::array<Quad, 4096>& quad_table() {
  static const std::array<Quad, 4096> table = [] {
    std::array<Quad, 4096> quads{};
    for (unsigned codes = 0; codes < 1u << 16; ++codes) {
      if ((codes & 0x8888u) != 0) continue;
      const Quad24 kept = select_2_4(codes);
      uint64_t zeros = 0;
      for (int k = 0; k < 4; ++k) zeros += ((codes >> 4 * k) & 7u) == 0;
      quads[magnitudes(codes)].bits =
          static_cast<uint64_t>(pair_energy(codes & 255u) + pair_energy(codes >> 8)) |
          static_cast<uint64_t>(pair_energy(kept.comp)) << Quad::kKept |
          uint64_t{is_tied_2_4(codes)} << Quad::kTied | zeros << Quad::kZeros |
          uint64_t{kept.meta} << Quad::kMeta;
    }
    return quads;
  }();
  return table;
}

/// Rows [first, first + n) of an expert of a module, or a part of K of them, as they are stored.
struct StoredSlice {
  const uint8_t* bytes;
  int64_t row_step, k_step;  ///< distance of a row from the next row, and of a byte along K from the next
                             ///< byte
};

/// Reads the rows of a piece. Uses a single read if they are contiguous.
StoredSlice read_stored(const Checkpoint& c, const Nvfp4Linear& m, size_t tensor, int64_t per_byte,
                        const SourceRows& rows, const Piece& piece, std::vector<uint8_t>& to) {
  const int64_t n = (rows.count - 1) * rows.step + 1, width = piece.k / per_byte, all = m.k / per_byte;
  const int64_t lines = m.k_outer ? width : n, length = m.k_outer ? n : width, pitch = m.k_outer ? m.n : all;
  const int64_t begin = rows.expert * m.n * all + (m.k_outer ? piece.k0 / per_byte * pitch + rows.first
                                                             : rows.first * pitch + piece.k0 / per_byte);
  to.resize(static_cast<size_t>(n * width));
  if (length == pitch) {
    c.read(tensor, static_cast<uint64_t>(begin), to);
  } else {
    for (int64_t i = 0; i < lines; ++i)
      c.read(tensor, static_cast<uint64_t>(begin + i * pitch),
             std::span(to).subspan(static_cast<size_t>(i * length), static_cast<size_t>(length)));
  }
  return m.k_outer ? StoredSlice{to.data(), rows.step, n} : StoredSlice{to.data(), rows.step * width, 1};
}

/// The codes and block scales of the rows of a piece.
std::pair<StoredSlice, StoredSlice> read_both(const Checkpoint& c, const Nvfp4Linear& m,
                                              const SourceRows& rows, const Piece& piece,
                                              std::vector<uint8_t>& codes, std::vector<uint8_t>& scales) {
  if (!c.is_computed(m)) {
    return {read_stored(c, m, m.codes, 2, rows, piece, codes),
            read_stored(c, m, m.block_scale, kGroup, rows, piece, scales)};
  }
  // Sources that are quantized when they are read have their rows one after the other.
  codes.resize(static_cast<size_t>(rows.count * piece.k / 2));
  scales.resize(static_cast<size_t>(rows.count * piece.k / kGroup));
  c.read_rows(m, {rows.first, rows.first + rows.count, piece.k0, piece.k0 + piece.k}, codes, scales);
  return {{codes.data(), piece.k / 2, 1}, {scales.data(), piece.k / kGroup, 1}};
}

/// Figures of some rows. The squares of halves are summed for each block scale, which is exact. Each sum is
/// multiplied by the scale once.
struct RowSums {
  std::array<uint64_t, 256> energy{}, kept{};
  uint64_t tied = 0, zeros = 0;
  void add_to(PieceCheck::Figures& f) const {
    f.stats.tied += tied;
    f.zero_codes += zeros;
    for (unsigned scale = 0; scale < energy.size(); ++scale) {
      const uint64_t units = e4m3_units(static_cast<uint8_t>(scale));
      f.stats.energy += static_cast<unsigned __int128>(units * units) * energy[scale];
      f.stats.kept_energy += static_cast<unsigned __int128>(units * units) * kept[scale];
    }
  }
};

/// One group of several neighbouring rows, with its codes, its block scales, and the places of its bytes.
/// Byte j of row r goes to `out[j * byte_step + r * row_step]`.
struct GroupOfRows {
  StoredSlice codes, scales;
  int64_t rows;
  uint8_t* out;
  int64_t byte_step, row_step;
  uint8_t* scale_out;  ///< for row 0
  int64_t scale_step;  ///< distance of a row from the next row
};

uint64_t load_codes(const StoredSlice& codes, int64_t row) {
  const uint8_t* from = codes.bytes + row * codes.row_step;
  uint64_t word = 0;
  if (codes.k_step == 1) {
    std::memcpy(&word, from, sizeof(word));
    return word;
  }
  for (int j = 0; j < 8; ++j) word |= uint64_t{from[j * codes.k_step]} << 8 * j;
  return word;
}

template <bool kSparse>
void derive_group(const Quad* const quads, const std::array<uint8_t, 256>& fold, const GroupOfRows& g,
                  RowSums& sums) {
  uint8_t* __restrict const out = g.out;
  uint8_t* __restrict const scale_out = g.scale_out;
  uint64_t tied = 0, zeros = 0;
  for (int64_t r = 0; r < g.rows; ++r) {
    const uint64_t codes = load_codes(g.codes, r), index = magnitudes(codes);
    const uint8_t scale = fold[g.scales.bytes[r * g.scales.row_step]];
    const Quad a = quads[index & 0xFFF], b = quads[index >> 16 & 0xFFF], c = quads[index >> 32 & 0xFFF],
               d = quads[index >> 48];
    const uint64_t sum = a.bits + b.bits + c.bits + d.bits;
    tied += sum >> Quad::kTied & 0xFF;
    zeros += sum >> Quad::kZeros & 0xFF;
    sums.energy[scale] += sum & 0xFFFF;
    sums.kept[scale] += kSparse ? sum >> Quad::kKept & 0xFFFF : sum & 0xFFFF;
    scale_out[r * g.scale_step] = scale;
    uint8_t* const to = out + r * g.row_step;
    if constexpr (kSparse) {
      const auto low = static_cast<uint32_t>(codes), high = static_cast<uint32_t>(codes >> 32);
      to[0] = static_cast<uint8_t>(a.comp(low));
      to[g.byte_step] = static_cast<uint8_t>(b.comp(low >> 16));
      to[2 * g.byte_step] = static_cast<uint8_t>(c.comp(high));
      to[3 * g.byte_step] = static_cast<uint8_t>(d.comp(high >> 16));
      to[4 * g.byte_step] = static_cast<uint8_t>(a.meta() | b.meta() << 4);
      to[5 * g.byte_step] = static_cast<uint8_t>(c.meta() | d.meta() << 4);
    } else {
      for (int j = 0; j < 8; ++j) to[j * g.byte_step] = static_cast<uint8_t>(codes >> 8 * j);
    }
  }
  sums.tied += tied;
  sums.zeros += zeros;
}

}  // namespace

LayoutRuns::LayoutRuns(const std::string& layout, Shape shape) {
  with_layout(layout, [&]<class L>() {
    parts_.resize(static_cast<size_t>(L::part_count));
    for (int p = 0; p < L::part_count; ++p) {
      const Part part = L::part(p, shape);
      std::vector<Run>& runs = parts_[static_cast<size_t>(p)];
      for (int64_t row = 0; row < part.rows; ++row) {
        for (int64_t col = 0; col < part.cols; ++col) {
          const Source s = L::source(p, shape, {0, row, col});
          const uint32_t from = s.byte == kPadding
                                    ? kZeros
                                    : static_cast<uint32_t>(DerivedOrder<L>::at(shape, s.n, s.group, s.byte));
          if (!runs.empty()) {
            Run& last = runs.back();
            const bool follows = from == kZeros ? last.derived == kZeros
                                                : last.derived != kZeros && from == last.derived + last.count;
            if (follows) {
              ++last.count;
              continue;
            }
          }
          runs.push_back({static_cast<uint32_t>(row * part.cols + col), from, 1});
        }
      }
    }
  });
}

std::shared_ptr<const LayoutRuns> LayoutRuns::of(const std::string& layout, Shape shape) {
  constexpr size_t kKept = 6;
  struct Entry {
    std::string layout;
    Shape shape;
    std::shared_ptr<const LayoutRuns> runs;
  };
  static std::mutex mutex;
  static std::deque<Entry> kept;
  const std::lock_guard lock(mutex);
  for (const Entry& e : kept) {
    if (e.layout == layout && e.shape == shape) return e.runs;
  }
  kept.push_front({layout, shape, std::shared_ptr<const LayoutRuns>(new LayoutRuns(layout, shape))});
  if (kept.size() > kKept) kept.pop_back();
  return kept.front().runs;
}

bool LayoutRuns::hold(std::span<const uint8_t> derived,
                      std::span<const std::span<const uint8_t>> parts) const {
  for (size_t p = 0; p < parts_.size(); ++p) {
    for (const Run& run : parts_[p]) {
      const uint8_t* found = parts[p].data() + run.part_offset;
      if (run.derived != kZeros) {
        if (std::memcmp(found, derived.data() + run.derived, run.count) != 0) return false;
      } else if (std::any_of(found, found + run.count, [](uint8_t byte) { return byte != 0; })) {
        return false;
      }
    }
  }
  return true;
}

template <class Layout>
void PieceCheck::derive(int64_t e, const Piece& piece, std::span<Figures> figures) {
  using Order = DerivedOrder<Layout>;
  constexpr int64_t kRows = 32;  // rows in a block; their lines fit into a cache, and few of them share a set
  const OutputMatrix& target = matrix_.target;
  const OutputScales& scales = matrix_.scales;
  const Shape shape = piece_shape(target, piece);
  const int64_t groups = shape.groups();
  const Quad* const quads = quad_table().data();
  derived_.resize(static_cast<size_t>(shape.n * groups * Order::kBytes));
  for (size_t i = 0; i < target.sources_per_expert; ++i) {
    const size_t at = static_cast<size_t>(e) * target.sources_per_expert + i;
    const SourceRows rows = piece_rows(target.sources[at], target, piece);
    const Nvfp4Linear& m = source_.nvfp4_modules()[rows.module];
    const auto [codes, block_scales] = read_both(source_, m, rows, piece, codes_, scales_);
    const float own = scales.own[at], folded = scales.folded[static_cast<size_t>(e)], factor = own / folded;
    std::array<uint8_t, 256> fold;
    for (unsigned b = 0; b < fold.size(); ++b) {
      const auto scale = static_cast<uint8_t>(b);
      fold[b] = own == folded ? scale : e4m3_from_float(e4m3_to_float(scale) * factor);
    }
    if (!m.k_outer && rows.step == 1 && rows.count == m.n && piece.k == m.k) {
      figures[i].slice = {hash_bytes(codes_), hash_bytes(scales_)};
    }
    RowSums sums;
    for (int64_t row = 0; row < rows.count; row += kRows) {
      for (int64_t g = 0; g < groups; ++g) {
        const auto place = [&](int64_t r, int byte) { return Order::at(shape, rows.n0 + row + r, g, byte); };
        const auto from = [&](const StoredSlice& s, int64_t bytes) {
          return StoredSlice{s.bytes + row * s.row_step + g * bytes * s.k_step, s.row_step, s.k_step};
        };
        constexpr int kScale = Order::kBytes - 1;
        derive_group<Order::kSparse>(
            quads, fold,
            {from(codes, 8), from(block_scales, 1), std::min(kRows, rows.count - row),
             derived_.data() + place(0, 0), place(0, 1) - place(0, 0), place(1, 0) - place(0, 0),
             derived_.data() + place(0, kScale), place(1, kScale) - place(0, kScale)},
            sums);
      }
    }
    figures[i].stats.quads += static_cast<uint64_t>(4 * groups * rows.count);
    sums.add_to(figures[i]);
  }
}

bool PieceCheck::run(int64_t e, const Piece& piece, const LayoutRuns& runs,
                     std::span<const std::span<const uint8_t>> parts, std::span<Figures> figures) {
  with_layout(matrix_.layout, [&]<class L>() { derive<L>(e, piece, figures); });
  return runs.hold(derived_, parts);
}

}  // namespace twofour
