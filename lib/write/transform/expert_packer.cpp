#include "lib/write/transform/expert_packer.h"

#include <algorithm>
#include <type_traits>

#include "formats/e4m3.h"
#include "formats/layouts/layout_ops.h"
#include "formats/layouts/layouts.h"
#include "kernels/pack/dense_pack.h"

namespace twofour {

/// Rows of a stored module, or a part of K of these rows. K is contiguous.
struct ExpertPacker::RowBlock {
  int64_t r0, rows;                 ///< range of rows of the module
  int64_t k0, k;                    ///< range of inputs
  const uint8_t* codes = nullptr;   ///< [rows, k/2]
  const uint8_t* scales = nullptr;  ///< [rows, k/16]
  Hasher* codes_hash = nullptr;     ///< if set, it gets the bytes in the stored order
  Hasher* scales_hash = nullptr;
};

namespace {

/// Transposes bytes [rows, cols] to [cols, rows].
void turn(const uint8_t* in, int64_t rows, int64_t cols, uint8_t* out) {
  constexpr int64_t kTile = 64;
  for (int64_t r0 = 0; r0 < rows; r0 += kTile) {
    for (int64_t c0 = 0; c0 < cols; c0 += kTile) {
      for (int64_t c = c0; c < std::min(cols, c0 + kTile); ++c) {
        for (int64_t r = r0; r < std::min(rows, r0 + kTile); ++r) out[c * rows + r] = in[r * cols + c];
      }
    }
  }
}

/// Notes the first bad block scale of a row block, with its row in the module.
void note_first_bad(const uint8_t* scales, int64_t rows, int64_t groups, int64_t r0, int64_t g0,
                    SourceResult& result) {
  if (result.first_bad_row >= 0) return;
  for (int64_t i = 0; i < rows * groups; ++i) {
    if (e4m3_is_block_scale(scales[i])) continue;
    result.first_bad_row = r0 + i / groups;
    result.first_bad_group = g0 + i % groups;
    result.first_bad_scale = scales[i];
    return;
  }
}

/// The rows of `s` among rows [r0, r0 + rows) of the module, as the first row and their number.
std::pair<int64_t, int64_t> rows_within(const SourceRows& s, int64_t r0, int64_t rows) {
  const int64_t begin = std::max<int64_t>(0, (r0 - s.first + s.step - 1) / s.step);
  const int64_t end =
      r0 + rows <= s.first ? 0 : std::min(s.count, (r0 + rows - s.first + s.step - 1) / s.step);
  return {begin, std::max<int64_t>(0, end - begin)};
}

}  // namespace

FoldLoss& FoldLoss::operator+=(const FoldLoss& other) {
  for (size_t i = 0; i < energy.size(); ++i) energy[i] += other.energy[i];
  changed += other.changed;
  return *this;
}

std::array<uint8_t, 256> fold_table(float own, float folded) {
  std::array<uint8_t, 256> table{};
  const float factor = own / folded;
  for (unsigned byte = 0; byte < 256; ++byte) {
    table[byte] = e4m3_is_block_scale(byte) ? e4m3_from_float(e4m3_to_float(byte) * factor)
                                            : static_cast<uint8_t>(byte);
  }
  return table;
}

uint8_t* ExpertPacker::buffer(std::vector<uint8_t>& b, size_t bytes) {
  // Row blocks begin at a cache line, so that the transpose has whole tiles. Rows that begin elsewhere leave
  // two edges.
  constexpr size_t kLine = 64;
  if (b.size() < bytes + kLine - 1) b.resize(bytes + kLine - 1);
  const auto beyond = reinterpret_cast<uintptr_t>(b.data()) % kLine;
  return b.data() + (kLine - beyond) % kLine;
}

void ExpertPacker::load(const Nvfp4Linear& m, int64_t expert, RowBlock& row_block) {
  const auto code_bytes = static_cast<size_t>(row_block.rows * row_block.k / 2),
             scale_bytes = static_cast<size_t>(row_block.rows * row_block.k / kGroup);
  uint8_t* to = buffer(rows_, code_bytes + scale_bytes);
  row_block.codes = to;
  row_block.scales = to + code_bytes;
  if (source_.is_computed(m)) {
    source_.read_rows(m,
                      {row_block.r0, row_block.r0 + row_block.rows, row_block.k0, row_block.k0 + row_block.k},
                      {to, code_bytes}, {to + code_bytes, scale_bytes});
    if (row_block.codes_hash != nullptr) row_block.codes_hash->update({to, code_bytes});
    if (row_block.scales_hash != nullptr) row_block.scales_hash->update({to + code_bytes, scale_bytes});
    return;
  }
  if (m.k_outer) {
    load_k_outer(m, expert, row_block, to);
    return;
  }
  const auto fill = [&](size_t tensor, int64_t per_byte, uint8_t* rows, Hasher* hasher) {
    const int64_t pitch = m.k / per_byte, width = row_block.k / per_byte;
    const int64_t first = (expert * m.n + row_block.r0) * pitch + row_block.k0 / per_byte;
    const auto bytes = static_cast<size_t>(row_block.rows * width);
    if (width == pitch) {
      source_.read(tensor, static_cast<uint64_t>(first), {rows, bytes});
    } else {
      for (int64_t r = 0; r < row_block.rows; ++r) {
        source_.read(tensor, static_cast<uint64_t>(first + r * pitch),
                     {rows + r * width, static_cast<size_t>(width)});
      }
    }
    if (hasher != nullptr) hasher->update({rows, bytes});
    bytes_read_ += bytes;
  };
  fill(m.codes, 2, to, row_block.codes_hash);
  fill(m.block_scale, kGroup, to + code_bytes, row_block.scales_hash);
}

void ExpertPacker::load_k_outer(const Nvfp4Linear& m, int64_t expert, const RowBlock& row_block,
                                uint8_t* to) {
  // A row of the file is one step of K for all N. Transposing it makes K contiguous.
  const auto fill = [&](size_t tensor, int64_t per_byte, uint8_t* turned, Hasher* hasher) {
    const int64_t lines = row_block.k / per_byte;
    const int64_t first = (expert * (m.k / per_byte) + row_block.k0 / per_byte) * m.n + row_block.r0;
    const auto bytes = static_cast<size_t>(lines * row_block.rows);
    uint8_t* stored = buffer(stored_, bytes);
    if (row_block.rows == m.n) {
      source_.read(tensor, static_cast<uint64_t>(first), {stored, bytes});
    } else {
      for (int64_t i = 0; i < lines; ++i) {
        source_.read(tensor, static_cast<uint64_t>(first + i * m.n),
                     {stored + i * row_block.rows, static_cast<size_t>(row_block.rows)});
      }
    }
    if (hasher != nullptr) hasher->update({stored, bytes});
    bytes_read_ += bytes;
    turn(stored, lines, row_block.rows, turned);
  };
  fill(m.codes, 2, to, row_block.codes_hash);
  fill(m.block_scale, kGroup, to + row_block.rows * row_block.k / 2, row_block.scales_hash);
}

std::pair<DenseRows, int64_t> ExpertPacker::rows_of(const OutputMatrix& target, size_t source,
                                                    const Piece& piece, const RowBlock& row_block) {
  const SourceRows s = piece_rows(target.sources[source], target, piece);
  const auto [begin, count] = rows_within(s, row_block.r0, row_block.rows);
  const int64_t groups = row_block.k / kGroup, at = s.first + begin * s.step - row_block.r0;
  return {{row_block.codes + at * row_block.k / 2, row_block.scales + at * groups, s.step * row_block.k / 2,
           s.step * groups, count, row_block.k},
          s.n0 + begin};
}

void ExpertPacker::pack_row_block(const LayoutMatrix& matrix, size_t source, const Piece& piece,
                                  const RowBlock& row_block, SourceResult& result) {
  const OutputMatrix& target = matrix.target;
  const OutputScales& scales = matrix.scales;
  auto [rows, n0] = rows_of(target, source, piece, row_block);
  if (rows.n == 0) return;
  const int64_t count = rows.n, groups = row_block.k / kGroup;

  const float own = scales.own[source], folded = scales.folded[source / target.sources_per_expert];
  if (own != folded) {
    if (!result.fold) result.fold = std::make_unique<FoldLoss>();
    const auto table = fold_table(own, folded);
    uint8_t* to = buffer(folded_, static_cast<size_t>(count * groups));
    for (int64_t r = 0; r < count; ++r) {
      for (int64_t g = 0; g < groups; ++g) {
        const uint8_t byte = rows.scales[r * rows.scales_pitch + g];
        uint32_t energy = 0;
        for (int64_t j = 0; j < 8; ++j) {
          const unsigned codes = rows.codes[r * rows.codes_pitch + g * 8 + j];
          const int low = e2m1_halves(codes & 15), high = e2m1_halves(codes >> 4);
          energy += static_cast<uint32_t>(low * low + high * high);
        }
        result.fold->energy[byte] += energy;
        result.fold->changed += e4m3_to_float(table[byte]) != e4m3_to_float(byte) * (own / folded);
        to[r * groups + g] = table[byte];
      }
    }
    rows.scales = to;
    rows.scales_pitch = groups;
  }

  with_layout(matrix.layout, [&]<class L>() {
    if constexpr (std::is_same_v<typename L::Atom, SparseGroup>) {
      result.stats += prune_pack<L>(rows, piece_shape(target, piece), n0, part_pointers_, isa_);
    } else {
      result.stats.bad_scales += dense_pack<L>(rows, piece_shape(target, piece), n0, part_pointers_);
    }
  });
}

void ExpertPacker::prepare_parts(const LayoutMatrix& matrix, const Piece& piece) {
  const OutputMatrix& target = matrix.target;
  with_layout(matrix.layout, [&]<class L>() {
    storage_.resize(L::part_count);
    parts_.clear();
    part_pointers_.clear();
    for (int p = 0; p < L::part_count; ++p) {
      const auto bytes = static_cast<size_t>(L::part(p, piece_shape(target, piece)).bytes());
      part_pointers_.push_back(buffer(storage_[static_cast<size_t>(p)], bytes));
      parts_.push_back({part_pointers_.back(), bytes});
    }
    // Packers do not write padding, and the buffer may still have the bytes of another expert.
    const Part last = L::part(L::part_count - 1, piece_shape(target, piece));
    const bool padded =
        layout_bytes<L>(piece_shape(target, piece)) != unpadded_bytes<L>(piece_shape(target, piece));
    if (padded) std::fill_n(part_pointers_.back(), last.bytes(), uint8_t{0});
  });
}

/// Rows [lo, hi) of a module, which are read once for all sources of an expert.
struct ExpertPacker::Run {
  size_t module;
  int64_t expert, lo, hi;
};

std::vector<ExpertPacker::Run> ExpertPacker::runs_of(const OutputMatrix& target, int64_t e,
                                                     const Piece& piece) const {
  std::vector<Run> runs;
  for (size_t i = 0; i < target.sources_per_expert; ++i) {
    const SourceRows s =
        piece_rows(target.sources[static_cast<size_t>(e) * target.sources_per_expert + i], target, piece);
    const int64_t hi = s.first + (s.count - 1) * s.step + 1;
    if (!runs.empty() && runs.back().module == s.module && s.first <= runs.back().hi) {
      runs.back().hi = std::max(runs.back().hi, hi);
    } else {
      runs.push_back({s.module, s.expert, s.first, hi});
    }
  }
  return runs;
}

template <class F>
void ExpertPacker::for_each_row_block(const LayoutMatrix& matrix, int64_t e, const Piece& piece,
                                      std::span<SourceResult> results, F&& f) {
  const OutputMatrix& target = matrix.target;
  const size_t first = static_cast<size_t>(e) * target.sources_per_expert;
  for (const Run& run : runs_of(target, e, piece)) {
    const Nvfp4Linear& m = source_.nvfp4_modules()[run.module];
    const bool whole = piece.k == m.k && run.hi - run.lo == m.n;
    Hasher codes_hash, scales_hash;
    const int64_t step = m.k_outer ? run.hi - run.lo : matrix.tiling.strip_rows;
    for (int64_t r0 = run.lo; r0 < run.hi; r0 += step) {
      RowBlock row_block{r0, std::min(step, run.hi - r0), piece.k0, piece.k};
      if (whole) row_block.codes_hash = &codes_hash, row_block.scales_hash = &scales_hash;
      load(m, run.expert, row_block);
      for (size_t j = 0; j < target.sources_per_expert; ++j) {
        if (target.sources[first + j].module == run.module) f(row_block, j);
      }
    }
    for (size_t j = 0; j < target.sources_per_expert && whole; ++j) {
      if (target.sources[first + j].module != run.module) continue;
      results[j].codes_hash = codes_hash.digest();
      results[j].scales_hash = scales_hash.digest();
    }
  }
}

void ExpertPacker::pack(const LayoutMatrix& matrix, int64_t e, const Piece& piece,
                        std::span<SourceResult> results) {
  const size_t first = static_cast<size_t>(e) * matrix.target.sources_per_expert;
  prepare_parts(matrix, piece);
  for_each_row_block(matrix, e, piece, results, [&](const RowBlock& row_block, size_t j) {
    const uint64_t before = results[j].stats.bad_scales;
    pack_row_block(matrix, first + j, piece, row_block, results[j]);
    if (results[j].stats.bad_scales == before) return;
    note_first_bad(row_block.scales, row_block.rows, piece.k / kGroup, row_block.r0, piece.k0 / kGroup,
                   results[j]);
  });
}

void ExpertPacker::check(const LayoutMatrix& matrix, int64_t e, std::span<SourceResult> results) {
  const OutputMatrix& target = matrix.target;
  for (size_t i = 0; i < target.sources_per_expert; ++i) {
    const SourceRows& s = target.sources[static_cast<size_t>(e) * target.sources_per_expert + i];
    if (i > 0 && s.module == target.sources[static_cast<size_t>(e) * target.sources_per_expert].module) break;
    const Nvfp4Linear& m = source_.nvfp4_modules()[s.module];
    const int64_t groups = m.k / kGroup, row_bytes = m.k_outer ? m.n : groups,
                  rows = m.n * groups / row_bytes;
    const int64_t step = std::max<int64_t>(1, (1 << 20) / row_bytes);
    for (int64_t r0 = 0; r0 < rows; r0 += step) {
      const int64_t count = std::min(step, rows - r0);
      const auto bytes = static_cast<size_t>(count * row_bytes);
      uint8_t* to = buffer(scales_, bytes);
      source_.read(m.block_scale, static_cast<uint64_t>((s.expert * rows + r0) * row_bytes), {to, bytes});
      bytes_read_ += bytes;
      for (size_t b = 0; b < bytes; ++b) results[i].stats.bad_scales += !e4m3_is_block_scale(to[b]);
      if (results[i].stats.bad_scales > 0) note_first_bad(to, count, row_bytes, r0, 0, results[i]);
    }
    if (m.k_outer && results[i].first_bad_row >= 0)
      std::swap(results[i].first_bad_row, results[i].first_bad_group);
  }
}

/// Hashes the codes and block scales of the same rows together.
SourceResult ExpertPacker::hash_computed(const Nvfp4Linear& m, const Tiling& tiling) {
  Hasher codes_hash, scales_hash;
  const int64_t step = std::max<int64_t>(1, tiling.strip_rows * tiling.k_step / m.k);
  for (int64_t r0 = 0; r0 < m.n; r0 += step) {
    RowBlock row_block{r0, std::min(step, m.n - r0), 0, m.k};
    row_block.codes_hash = &codes_hash;
    row_block.scales_hash = &scales_hash;
    load(m, 0, row_block);
  }
  SourceResult result;
  result.codes_hash = codes_hash.digest();
  result.scales_hash = scales_hash.digest();
  return result;
}

void ExpertPacker::hash(const LayoutMatrix& matrix, int64_t e, std::span<SourceResult> results) {
  const OutputMatrix& target = matrix.target;
  for (size_t i = 0; i < target.sources_per_expert; ++i) {
    const SourceRows& s = target.sources[static_cast<size_t>(e) * target.sources_per_expert + i];
    const Nvfp4Linear& m = source_.nvfp4_modules()[s.module];
    if (source_.is_computed(m)) {
      results[i] = hash_computed(m, matrix.tiling);
      continue;
    }
    const auto slice = [&](size_t tensor, int64_t per_byte) {
      Hasher hasher;
      const auto bytes = static_cast<uint64_t>(m.n * m.k / per_byte),
                 begin = static_cast<uint64_t>(s.expert) * bytes;
      constexpr uint64_t kChunk = 1 << 20;
      uint8_t* to = buffer(stored_, kChunk);
      for (uint64_t at = 0; at < bytes; at += kChunk) {
        const auto count = static_cast<size_t>(std::min(kChunk, bytes - at));
        source_.read(tensor, begin + at, {to, count});
        hasher.update({to, count});
        bytes_read_ += count;
      }
      return hasher.digest();
    };
    results[i].codes_hash = slice(m.codes, 2);
    results[i].scales_hash = slice(m.block_scale, kGroup);
  }
}

}  // namespace twofour
