#include <algorithm>
#include <cmath>

#include "lib/lint/bytes/figures.h"

namespace twofour {

void FigureCounter::count_columns(MatrixFigures& f) const {
  const NumberKind kind = plan_.kind;
  const auto count = [&](uint64_t column, bool zero) {
    f.zero_columns += zero;
    f.trailing_zero_columns = zero ? f.trailing_zero_columns + 1 : 0;
    f.longest_zero_columns = std::max(f.longest_zero_columns, f.trailing_zero_columns);
    if (zero) f.zero_places.add(column, f.columns);
  };
  if (has_float_rows()) {
    f.columns = column_sums_.size();
    for (uint64_t c = 0; c < f.columns; ++c) count(c, column_sums_[c] == 0);
    return;
  }
  // A byte has two columns of E2M1. In modules whose outer dimension is K, a byte is a row.
  const auto width = static_cast<uint64_t>(width_of(kind));
  const bool halves = kind == NumberKind::kE2m1 && !plan_.k_outer;
  const auto is_zero = [&](uint64_t column) {
    if (halves) return (columns_[column / 2] >> (column % 2 * 4) & 7) == 0;
    for (uint64_t i = 0; i < width; ++i) {
      if ((columns_[column * width + i] & magnitude_bits(kind, i)) != 0) return false;
    }
    return true;
  };
  f.columns = halves ? 2 * columns_.size() : columns_.size() / width;
  // Checks sixteen columns of codes at once. In most cases no code is zero.
  const auto are_used = [&](uint64_t column) {
    if (!halves || column + 16 > f.columns) return false;
    const uint64_t m = word_of(&columns_[column / 2]) & kCodeBits;
    return ((m | m >> 1 | m >> 2) & kCodeUnits) == kCodeUnits;
  };
  for (uint64_t c = 0; c < f.columns; ++c) {
    if (c % 16 == 0 && are_used(c)) {
      f.trailing_zero_columns = 0;
      c += 15;
      continue;
    }
    count(c, is_zero(c));
  }
}

/// Compares rows, and columns, by their magnitudes.
void FigureCounter::judge_levels(MatrixFigures& f) const {
  const bool of_scales = plan_.scale_bytes > 0 || plan_.is_scale;
  std::vector<float> rows = row_sums_, columns = column_sums_;
  for (size_t i = 0; i < row_counts_.size(); ++i)
    rows[i] = row_counts_[i] > 0 ? rows[i] / static_cast<float>(row_counts_[i]) : -INFINITY;
  for (size_t i = 0; i < columns.size(); ++i) {
    if (!of_scales) {
      columns[i] = std::log2(columns[i] / static_cast<float>(plan_.lines)) / 2;
    } else if (column_counts_[i] == 0) {
      columns[i] = -INFINITY;
    } else {
      const float bytes = plan_.is_scale ? 1 : kCodesInOctave;
      columns[i] /= static_cast<float>(column_counts_[i]) * bytes;
    }
  }
  f.row_levels = compare_levels(rows);
  f.column_levels = compare_levels(columns);
  // A column of block scales is sixteen columns of weights.
  constexpr size_t kGroup = 16, kFewestRows = 1024;
  const bool floats = has_float_rows();
  const size_t inputs = columns.size() * (floats ? 1 : kGroup);
  if (rows.size() == plan_.lines && inputs >= kFewestRows &&
      (floats || (plan_.scale_bytes > 0 && !plan_.k_outer))) {
    if (rows.size() == inputs) f.row_sketch = sketch_of(rows, kGroup);
    f.column_sketch = sketch_of(columns, floats ? kGroup : 1);
  }
  judge_pairs(f);
  if (lone_ > 0) {
    f.lone = std::log2(lone_) - double{f.row_levels.median};
    f.lone_line = lone_line_;
  }
}

/// Adds the magnitudes of the two columns of each byte.
void FigureCounter::take_pairs(const uint8_t* bytes) {
  lower_codes_.resize(plan_.line_bytes);
  upper_codes_.resize(plan_.line_bytes);
  uint16_t *const lower = lower_codes_.data(), *const upper = upper_codes_.data();
#pragma omp simd
  for (size_t i = 0; i < plan_.line_bytes; ++i) {
    lower[i] = static_cast<uint16_t>(lower[i] + (bytes[i] & 7));
    upper[i] = static_cast<uint16_t>(upper[i] + (bytes[i] >> 4 & 7));
  }
}

/// Looks for neighbouring columns without a sign in kSignLines lines.
void FigureCounter::take_signs(const uint8_t* bytes) {
  const uint64_t at = next_ % kSignStep;
  if (at < kSignLines || at >= 2 * kSignLines) return;
  if (at == kSignLines) signs_.assign(plan_.line_bytes, 0);
  if (signs_.empty()) return;
  or_into(signs_, bytes);
  if (at + 1 < 2 * kSignLines) return;
  constexpr uint64_t kGroup = 32;
  const bool codes = plan_.kind == NumberKind::kE2m1;
  const uint8_t sign = codes ? 0x88 : 0x80;
  uint64_t run = 0;
  for (uint64_t i = 0; i + kGroup <= signs_.size(); i += kGroup) {
    uint64_t all = 0;
    for (uint64_t w = 0; w < kGroup; w += 8) all |= word_of(&signs_[i + w]);
    const bool none = (all & (codes ? 0x8888888888888888u : 0x8080808080808080u)) == 0;
    const auto used =
        none ? std::count_if(&signs_[i], &signs_[i] + kGroup, [&](uint8_t b) { return (b & ~sign) != 0; })
             : 0;
    run = static_cast<uint64_t>(4 * used) >= 3 * kGroup ? run + kGroup : 0;
    if (run <= sums_.unsigned_columns) continue;
    sums_.unsigned_columns = static_cast<uint32_t>(run);
    sums_.first_unsigned = static_cast<uint32_t>(i + kGroup - run);
    sums_.unsigned_line = static_cast<uint32_t>(next_ + 1 - kSignLines);
  }
  signs_.clear();
}

void FigureCounter::judge_pairs(MatrixFigures& f) const {
  constexpr size_t kFewest = 512;
  if (lower_codes_.size() < kFewest || plan_.lines < kPairLines) return;
  std::vector<float> differences;
  for (size_t i = 0; i < lower_codes_.size(); ++i) {
    const float low = lower_codes_[i], high = upper_codes_[i];
    differences.push_back(low + high > 0 ? (low - high) / (low + high) : 0);
  }
  f.pair_sketch = sketch_of(differences, 1);
}

/// Keeps the longest run of blocks of zeros if it begins or ends within a line, has scales like those of the
/// other blocks, and is unlikely given the number of such blocks elsewhere. Whole lines may be rows that are
/// zero by design. They are kept if they fill a page, if no other block is like them, and if their scales
/// differ: producers give all blocks of zeros one scale, and the sum of n equal scales is a multiple of n.
void FigureCounter::judge_dead_blocks(MatrixFigures& f) const {
  constexpr uint64_t kFew = 64, kPage = 512;
  constexpr double kUnlikely = -20, kMost = 0.3, kBelow = 1.5 * kCodesInOctave;
  const uint64_t run = f.dead_run;
  const bool within = plan_.scale_bytes > 0 && (f.dead_first % plan_.scale_bytes != 0 ||
                                                (f.dead_first + run) % plan_.scale_bytes != 0);
  f.dead_run = 0;
  if (run < kFew) return;
  const bool is_last = f.dead_first + run == plan_.lines * plan_.scale_bytes;
  const bool is_page = run >= kPage && dead_blocks_ == run && best_run_scales_ % run != 0 && !is_last;
  if (!within && !is_page) return;
  const double elsewhere =
      static_cast<double>(dead_blocks_ - run + 1) / static_cast<double>(blocks_ - run + 2);
  const double chance =
      std::log(static_cast<double>(blocks_)) + static_cast<double>(run) * std::log(elsewhere);
  const double scale = static_cast<double>(best_run_scales_) / static_cast<double>(run);
  if (elsewhere > kMost || chance > kUnlikely ||
      scale < double{f.row_levels.median} * kCodesInOctave - kBelow)
    return;
  f.dead_run = run;
}

}  // namespace twofour
