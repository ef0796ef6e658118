#include "lib/recipe/artifact/reference_unpacker.h"

#include <fmt/format.h>

#include <algorithm>
#include <type_traits>

#include "formats/error.h"
#include "formats/layouts/layout_ops.h"
#include "formats/layouts/layouts.h"

namespace twofour {
namespace {

/// A piece of an expert, cut along the layout's outermost axis. It has rows [r0, r0 + rows) as stored, and
/// inputs [k0, k0 + k). The piece is itself a matrix.
struct Cut {
  int64_t r0, rows, k0, k;
};

/// The approximate number of bytes, of all parts together, that are read at once.
constexpr int64_t kPieceBytes = 1 << 20;
/// The smallest number of bytes or weights that is worth starting a team of threads.
constexpr int64_t kTeamWork = 1 << 16;

template <class L>
std::vector<Cut> cuts_of(Shape s) {
  constexpr bool along_k = L::outer == Axis::kK;
  const Shape grain{1, along_k ? s.n : kTileAlignment, along_k ? kTileAlignment : s.k, s.gated};
  const int64_t step = std::max<int64_t>(1, kPieceBytes / layout_bytes<L>(grain)) * kTileAlignment;
  std::vector<Cut> cuts;
  for (int64_t at = 0; at < (along_k ? s.k : s.n); at += step) {
    cuts.push_back(along_k ? Cut{0, s.n, at, std::min(step, s.k - at)}
                           : Cut{at, std::min(step, s.n - at), 0, s.k});
  }
  return cuts;
}

/// The row of the whole matrix that is row `n` of a piece.
int64_t whole_row(Shape whole, const Cut& cut, int64_t n) {
  if (!whole.gated) return cut.r0 + n;
  const int64_t half = cut.rows / 2;
  return n < half ? cut.r0 / 2 + n : whole.n / 2 + cut.r0 / 2 + n - half;
}

bool is_legal(const DenseGroup&) { return true; }
bool is_legal(const SparseGroup& group) {
  return std::all_of(std::begin(group.meta), std::end(group.meta),
                     [](uint8_t m) { return is_legal_meta(m & 15) && is_legal_meta(m >> 4); });
}
DenseGroup dense(const DenseGroup& group) { return group; }
DenseGroup dense(const SparseGroup& group) { return expand(group); }

/// True if a stored byte is valid by the layout's map. Padding must be zero, and any other byte must equal
/// its first copy.
template <class L>
bool is_sound(const std::vector<std::span<const uint8_t>>& parts, Shape shape, int p, Place at) {
  const auto byte_at = [&](const Stored& s) {
    return parts[static_cast<size_t>(s.part)]
                [static_cast<size_t>(s.at.row * L::part(s.part, shape).cols + s.at.col)];
  };
  const Source source = L::source(p, shape, at);
  if (source.byte == kPadding) return byte_at({p, at}) == 0;
  return L::copies(source.byte) == 1 || byte_at({p, at}) == byte_at(L::place(shape, source));
}

}  // namespace

template <class L>
void ReferenceUnpacker::check_piece(const std::vector<std::span<const uint8_t>>& parts, Shape shape,
                                    const std::vector<int64_t>& first_rows) const {
  const ArtifactMatrix& matrix = modules_.matrices[matrix_];
  for (int p = 0; p < L::part_count; ++p) {
    const Part part = L::part(p, shape);
    int64_t bad = 0;
#pragma omp parallel for schedule(static) reduction(+ : bad) if (part.bytes() >= kTeamWork)
    for (int64_t i = 0; i < part.bytes(); ++i)
      bad += !is_sound<L>(parts, shape, p, {0, i / part.cols, i % part.cols});
    if (bad == 0) continue;
    for (int64_t i = 0; i < part.bytes(); ++i) {
      const Place at{0, i / part.cols, i % part.cols};
      if (is_sound<L>(parts, shape, p, at)) continue;
      const Source source = L::source(p, shape, at);
      throw Error(
          fmt::format("{}: expert {}, row {}, {} {}: expected {}, found 0x{:02X}",
                      artifact_.where(matrix.parts[static_cast<size_t>(p)]), e_,
                      first_rows[static_cast<size_t>(p)] + at.row, source.byte == kPadding ? "column" : "n",
                      source.byte == kPadding ? at.col : source.n,
                      source.byte == kPadding ? "0x00 as padding" : "the same byte as its other copy has",
                      parts[static_cast<size_t>(p)][static_cast<size_t>(i)]));
    }
  }
}

template <class L>
void ReferenceUnpacker::load_block() {
  const ArtifactMatrix& matrix = modules_.matrices[matrix_];
  const Shape whole{1, matrix.shape.n, matrix.shape.k, matrix.shape.gated};
  std::vector<std::vector<uint8_t>> storage(L::part_count);
  std::vector<std::span<const uint8_t>> parts(L::part_count);
  std::vector<int64_t> first_rows(L::part_count);
  for (const Cut& cut : cuts_of<L>(whole)) {
    const Shape shape{1, cut.rows, cut.k, whole.gated};
    const auto is_wanted = [&](int64_t n, int64_t g) {
      return holds(whole_row(whole, cut, n), cut.k0 / kGroup + g);
    };
    bool wanted = false;
    for (int64_t i = 0; i < cut.rows * shape.groups() && !wanted; ++i)
      wanted = is_wanted(i / shape.groups(), i % shape.groups());
    if (!wanted) continue;
    for (size_t p = 0; p < storage.size(); ++p) {
      const int part = static_cast<int>(p);
      int64_t before = 0;
      if (cut.r0 > 0) before = L::part(part, {1, cut.r0, whole.k, whole.gated}).bytes();
      if (cut.k0 > 0) before = L::part(part, {1, whole.n, cut.k0, whole.gated}).bytes();
      first_rows[p] = before / L::part(part, whole).cols;
      storage[p].resize(static_cast<size_t>(L::part(part, shape).bytes()));
      artifact_.read(matrix.parts[p], static_cast<uint64_t>(e_ * L::part(part, whole).bytes() + before),
                     storage[p]);
      parts[p] = storage[p];
    }
    check_piece<L>(parts, shape, first_rows);
    int64_t bad = 0;
#pragma omp parallel for schedule(static) reduction(+ : bad) if (cut.rows * cut.k >= kTeamWork)
    for (int64_t n = 0; n < cut.rows; ++n) {
      const int64_t row = whole_row(whole, cut, n) - n0_, first = cut.k0 / kGroup - g0_;
      for (int64_t g = 0; g < shape.groups(); ++g) {
        if (!is_wanted(n, g)) continue;
        const auto atom = unpack_atom<L>(shape, n, g, parts);
        bad += !is_legal(atom);
        groups_[static_cast<size_t>(row * width_ + first + g)] = dense(atom);
      }
    }
    for (int64_t i = 0; bad > 0 && i < cut.rows * shape.groups(); ++i) {
      const int64_t n = i / shape.groups(), g = i % shape.groups();
      const auto atom = unpack_atom<L>(shape, n, g, parts);
      if (is_legal(atom) || !is_wanted(n, g)) continue;
      if constexpr (std::is_same_v<typename L::Atom, SparseGroup>) {
        const Stored s = L::place(shape, {0, n, g, 4});
        throw Error(
            fmt::format("{}: expert {}, row {} or the next such, n {}: expected two ascending positions in "
                        "each half of the metadata byte, found 0x{:02X} and 0x{:02X}",
                        artifact_.where(matrix.parts[static_cast<size_t>(s.part)]), e_,
                        first_rows[static_cast<size_t>(s.part)] + s.at.row, n, atom.meta[0], atom.meta[1]));
      }
    }
  }
}

void ReferenceUnpacker::load(const SourceLinear& m, int64_t e, int64_t n, int64_t group) {
  if (m.matrix == matrix_ && e == e_ && holds(n, group)) return;
  const ArtifactMatrix& matrix = modules_.matrices[m.matrix];
  const int64_t rows = matrix.shape.n, groups = matrix.shape.groups();
  const int64_t most = std::max<int64_t>(1, bytes_ / static_cast<int64_t>(sizeof(DenseGroup)));
  const int64_t row_step = m.k_outer ? rows : std::clamp<int64_t>(most / groups, 1, rows);
  const int64_t group_step = m.k_outer ? std::clamp<int64_t>(most / rows, 1, groups) : groups;
  matrix_ = m.matrix;
  e_ = e;
  n0_ = n / row_step * row_step;
  rows_ = std::min(row_step, rows - n0_);
  g0_ = group / group_step * group_step;
  width_ = std::min(group_step, groups - g0_);
  groups_.resize(static_cast<size_t>(rows_ * width_));
  try {
    with_layout(matrix.layout, [&]<class L>() { load_block<L>(); });
  } catch (...) {
    matrix_ = SIZE_MAX;
    throw;
  }
}

void ReferenceUnpacker::read(const SourceLinear& m, Field field, int64_t e, int64_t begin,
                             std::span<uint8_t> out) {
  const std::lock_guard lock(mutex_);
  const int64_t width = m.k / (field == Field::kCodes ? 2 : kGroup);
  for (size_t i = 0; i < out.size(); ++i) {
    const int64_t at = begin + static_cast<int64_t>(i);
    const int64_t row = m.k_outer ? at % m.n : at / width, col = m.k_outer ? at / m.n : at % width;
    int64_t n = -1;
    for (const RowRun& run : m.rows) {
      const int64_t nth = (row - run.first) / run.step;
      const bool inside = row >= run.first && (row - run.first) % run.step == 0 && nth < run.count;
      if (inside) n = run.n0 + nth;
    }
    const int64_t group = field == Field::kCodes ? col / 8 : col;
    load(m, m.first_expert + e, n, group);
    const DenseGroup& atom = groups_[static_cast<size_t>((n - n0_) * width_ + group - g0_)];
    out[i] = field == Field::kCodes ? atom.codes[col % 8] : atom.scale;
  }
}

}  // namespace twofour
