#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>

#include "formats/e2m1.h"
#include "lib/lint/bytes/figures.h"
#include "lib/source/linears/tensor_values.h"

namespace twofour {
namespace {

DType type_of(NumberKind kind) {
  return kind == NumberKind::kBf16 ? DType::kBF16 : kind == NumberKind::kF16 ? DType::kF16 : DType::kF32;
}

/// For each byte, the sum of the squares of its two E2M1 codes, with codes in halves.
const std::array<uint16_t, 256>& pair_energies() {
  static const std::array<uint16_t, 256> table = [] {
    std::array<uint16_t, 256> t{};
    for (unsigned b = 0; b < 256; ++b) {
      const int low = e2m1_halves(b & 7), high = e2m1_halves(b >> 4 & 7);
      t[b] = static_cast<uint16_t>(low * low + high * high);
    }
    return t;
  }();
  return table;
}

/// Adds the bits that are set in any byte, and those that are set in all.
void take_bits(std::span<const uint8_t> bytes, Chunk& chunk) {
  uint8_t any = 0, all = 0xFF;
#pragma omp simd reduction(| : any) reduction(& : all)
  for (size_t i = 0; i < bytes.size(); ++i) {
    any = static_cast<uint8_t>(any | bytes[i]);
    all = static_cast<uint8_t>(all & bytes[i]);
  }
  chunk.any_bits |= any;
  chunk.all_bits &= all;
}

}  // namespace

/// Counts blocks whose bytes are apart by a row.
void FigureCounter::count_k_outer(std::span<const uint8_t> bytes, CodeCounts& counts) const {
  counts.zero_blocks = counts.full_blocks = 0;
  for (uint64_t at = 0; at < bytes.size(); at += plan_.line_bytes) {
    for (uint64_t b = 0; b < plan_.scale_bytes; ++b) {
      uint64_t block = 0;
      for (uint64_t i = 0; i < 8; ++i) block |= uint64_t{bytes[at + i * plan_.scale_bytes + b]} << (8 * i);
      const uint64_t m = block & kCodeBits;
      counts.zero_blocks += m == 0;
      counts.full_blocks += (m & m >> 1 & m >> 2 & kCodeUnits) != 0;
    }
  }
}

/// Looks for windows of noise. If the module has no block scales, adds their codes to `counts`.
void FigureCounter::count_windows(std::span<const uint8_t> bytes, CodeCounts& counts) {
  for (uint64_t at = 0; at < bytes.size(); at += Chunk::kWindow) {
    const auto some = bytes.subspan(at, std::min(Chunk::kWindow, bytes.size() - at));
    CodeCounts window;
    best_count_ops().codes(some.data(), some.size(), window);
    if (some.size() == Chunk::kWindow) chunk_.noise_windows += is_noise_window(window);
    if (plan_.scale_bytes > 0) continue;
    for (size_t c = 0; c < std::size(counts.codes); ++c) counts.codes[c] += window.codes[c];
  }
}

/// Takes what is counted of all lines at once.
void FigureCounter::take_piece(std::span<const uint8_t> bytes, std::span<const uint8_t> scales) {
  const CountOps& ops = best_count_ops();
  float_lines_.clear();
  if (plan_.scale_bytes > 0) {
    ops.histogram(scales.data(), scales.size(), scale_bytes_.data());
    if (!plan_.k_outer) take_scales(scales);
  } else if (plan_.kind == NumberKind::kE8m0) {
    ops.histogram(bytes.data(), bytes.size(), numbers_.data());
    if (plan_.scale_columns > 0) take_exponents(bytes);
  } else if (plan_.kind == NumberKind::kBf16) {
    take_halves(bytes);
  }
}

void FigureCounter::take_run(std::span<const uint8_t> bytes, const uint8_t* scales) {
  if (plan_.kind == NumberKind::kE4m3) {
    Fp8Counts counts;
    best_count_ops().fp8(bytes.data(), bytes.size(), counts);
    add_fp8(counts, chunk_);
    full_ += counts.full;
    next_full_ += counts.next;
    take_bits(bytes, chunk_);
  } else if (plan_.kind == NumberKind::kInt8) {
    bytes_.add(bytes);
  } else if (plan_.kind == NumberKind::kE2m3) {
    add_sixes(bytes, chunk_, numbers_);
  }
  if (!is_codes()) return;
  CodeCounts counts;
  const bool in_windows = plan_.scale_bytes == 0;
  if (!in_windows) best_count_ops().codes(bytes.data(), bytes.size(), counts);
  // Codes of weights with a scale for each block have blocks without a code of 6 seldom, and noise often.
  const uint64_t not_full = bytes.size() / 8 - counts.zero_blocks - counts.full_blocks;
  constexpr uint64_t kFewNotFull = 24;
  if (in_windows || not_full >= kFewNotFull) count_windows(bytes, counts);
  add_codes(plan_.kind, counts, chunk_);
  if (plan_.scale_bytes == 0) return;
  if (plan_.k_outer) count_k_outer(bytes, counts);
  const uint64_t blocks = bytes.size() / 8;
  if (!plan_.k_outer)
    chunk_.tiny_scales += static_cast<uint64_t>(
        std::count_if(scales, scales + blocks, [](uint8_t s) { return s < kTinyScale; }));
  blocks_ += blocks;
  zero_blocks_ += counts.zero_blocks;
  full_blocks_ += counts.full_blocks;
  chunk_.blocks += blocks - counts.zero_blocks;
  chunk_.full_blocks += counts.full_blocks;
  if (plan_.k_outer) return;
  if (counts.zero_blocks > 0) {
    take_dead_blocks(bytes, scales);
  } else {
    run_ = 0;
  }
}

bool FigureCounter::has_float_rows() const {
  return plan_.is_rows && !plan_.is_scale &&
         (plan_.kind == NumberKind::kBf16 || plan_.kind == NumberKind::kF16 ||
          plan_.kind == NumberKind::kF32);
}

void FigureCounter::take_columns(const uint8_t* bytes) {
  if (plan_.kind == NumberKind::kInt4) return;  // the bits of a zero are not zero
  if (has_float_rows()) return;                 // squares are added
  if (plan_.k_outer) {
    columns_.resize(plan_.line_bytes / 8);
    for (uint64_t row = 0; row < 8; ++row) {
      or_into(columns_, bytes + row * columns_.size());
    }
    return;
  }
  columns_.resize(plan_.line_bytes);
  if (columns_used_ || plan_.is_scale) return;
  or_into(columns_, bytes);
  // In most matrices, a few lines show that no column is zero.
  constexpr uint64_t kLines = 32;
  const bool fp8 = plan_.kind == NumberKind::kE4m3;
  if ((plan_.kind != NumberKind::kE2m1 && !fp8) || next_ % kLines != 0) return;
  columns_used_ = std::ranges::all_of(columns_, [&](uint8_t byte) {
    return fp8 ? (byte & 0x7F) != 0 : (byte & 7) != 0 && (byte & 0x70) != 0;
  });
}

void FigureCounter::take_energies(const uint8_t* codes, const uint8_t* scales) {
  const auto& energies = pair_energies();
  for (uint64_t b = 0; b < plan_.scale_bytes; ++b) {
    uint32_t energy = 0;
    for (uint64_t i = 0; i < 8; ++i)
      energy += energies[codes[plan_.k_outer ? i * plan_.scale_bytes + b : 8 * b + i]];
    scale_energies_[scales[b]] += energy;
  }
  energy_numbers_ += 2 * plan_.line_bytes;
  for (uint64_t b = 0; b + 2 < plan_.scale_bytes; b += 2) {
    ++sums_.scale_pairs;
    sums_.equal_pairs += scales[b] == scales[b + 1];
    sums_.equal_between += scales[b + 1] == scales[b + 2];
  }
}

/// Counts runs of blocks of zeros whose scales are not the smallest ones, which blocks of zeros have.
void FigureCounter::take_dead_blocks(std::span<const uint8_t> codes, const uint8_t* scales) {
  const uint64_t count = codes.size() / 8, first = (next_ + 1) * plan_.scale_bytes - count;
  for (uint64_t b = 0; b < count; ++b) {
    if ((word_of(&codes[8 * b]) & kCodeBits) != 0 || scales[b] < kTinyScale) {
      run_ = 0;
      continue;
    }
    ++dead_blocks_;
    if (run_ == 0) run_first_ = first + b, run_scales_ = 0;
    ++run_;
    run_scales_ += scales[b];
    if (run_ <= sums_.dead_run) continue;
    sums_.dead_run = run_;
    sums_.dead_first = run_first_;
    best_run_scales_ = run_scales_;
  }
}

/// Adds bytes to the columns from `column` on. Returns the sums of the lines.
std::span<const ByteSums> FigureCounter::add_bytes(const uint8_t* bytes, uint64_t count, uint64_t lines,
                                                   uint8_t least, uint64_t columns, uint64_t column) {
  column_parts_.resize(2 * columns);
  byte_lines_.assign(lines, {});
  best_count_ops().bytes(bytes, count, lines, least, column_parts_.data() + column,
                         column_parts_.data() + columns + column, byte_lines_.data());
  column_lines_ += static_cast<int>(lines);
  if (column_lines_ == kMostLines) add_column_parts();
  return byte_lines_;
}

/// Adds the bytes of block scales, which grow with their logarithms, by rows and by columns. Those of blocks
/// of zeros are left out.
void FigureCounter::take_scales(std::span<const uint8_t> scales) {
  const uint64_t count = plan_.scale_bytes, lines = scales.size() / count;
  for (uint64_t at = 0; at < lines;) {
    const uint64_t some = std::min<uint64_t>(lines - at, static_cast<uint64_t>(kMostLines - column_lines_));
    for (const ByteSums& line : add_bytes(&scales[at * count], count, some, kTinyScale, count, 0)) {
      row_sums_.push_back(line.count > 0
                              ? static_cast<float>(line.sum) / static_cast<float>(line.count) / kCodesInOctave
                              : -INFINITY);
    }
    at += some;
  }
}

void FigureCounter::add_column_parts() {
  const size_t count = column_parts_.size() / 2;
  column_sums_.resize(count);
  column_counts_.resize(count);
  const float bias = plan_.kind == NumberKind::kE8m0 ? kE8m0Bias : 0;
  for (size_t i = 0; i < count; ++i) {
    column_sums_[i] +=
        static_cast<float>(column_parts_[i]) - bias * static_cast<float>(column_parts_[count + i]);
    column_counts_[i] += column_parts_[count + i];
  }
  std::ranges::fill(column_parts_, uint16_t{0});
  column_lines_ = 0;
}

/// Counts lines of BF16.
void FigureCounter::take_halves(std::span<const uint8_t> bytes) {
  const uint64_t lines = bytes.size() / plan_.line_bytes, count = plan_.line_bytes / 2;
  const auto* numbers = reinterpret_cast<const uint16_t*>(bytes.data());
  float_lines_.resize(lines + 1);
  if (has_float_rows()) column_sums_.resize(count);
  float* const columns = has_float_rows() ? column_sums_.data() : nullptr;
  best_count_ops().bf16(numbers, count, lines, columns, float_lines_.data());
  // Only the last line of a tensor without rows is shorter.
  const uint64_t rest = bytes.size() / 2 - lines * count;
  if (rest > 0) best_count_ops().bf16(numbers + lines * count, rest, 1, nullptr, &float_lines_[lines]);
  half_range_ = {};
  for (const FloatCounts& line : float_lines_) {
    half_range_.least = std::min(half_range_.least, line.range.least);
    half_range_.most = std::max(half_range_.most, line.range.most);
    half_range_.bits = static_cast<uint16_t>(half_range_.bits | line.range.bits);
  }
}

/// `counts` are those of a line of BF16.
void FigureCounter::take_floats(std::span<const uint8_t> bytes, const FloatCounts* counts, bool is_sampled) {
  const auto width = static_cast<uint64_t>(width_of(plan_.kind));
  const uint64_t count = bytes.size() / width;
  const bool has_rows = has_float_rows();
  const auto widen = [&] {
    floats_.resize(count);
    to_floats(type_of(plan_.kind), bytes.data(), floats_);
  };
  const uint64_t first = next_ * plan_.line_bytes / width;
  const CountOps& ops = best_count_ops();
  FloatCounts line;
  if (counts != nullptr) {
    line = *counts;
    if (plan_.is_scale)
      take_levels(reinterpret_cast<const uint16_t*>(bytes.data()), count, first, ops.bf16_levels);
  } else {
    std::vector<float>& columns = has_rows ? column_sums_ : spare_;
    columns.resize(count);
    widen();
    ops.f32(floats_.data(), count, columns.data(), line);
    if (plan_.is_scale) take_levels(floats_.data(), count, first, ops.f32_levels);
  }
  // Squares below kSmallest lose bits. NaN or infinity spoils the sum.
  constexpr double kSmallest = 0x1p-120;
  const bool is_exact = std::isfinite(line.energy) && line.energy >= kSmallest;
  const bool may_be_grid = has_rows && is_grid_;
  if (is_sampled || may_be_grid || !is_exact) {
    widen();
    if (may_be_grid) is_grid_ = are_on_grid(floats_);
    if (is_sampled) {
      for (const float x : floats_) ++numbers_[std::bit_cast<uint32_t>(x) >> 23 & 0xFF];
    }
    if (!is_exact) {
      const FloatCounts finite = sum_finite(floats_);
      line.energy = finite.energy;
      line.amax = finite.amax;
    }
  }
  chunk_.numbers += count;
  chunk_.zeros += line.zeros;
  chunk_.negative += line.negative;
  energy_ += line.energy;
  const auto amax = static_cast<double>(line.amax);
  amax_ = std::max(amax_, amax);
  if (!has_rows) return;
  row_sums_.push_back(static_cast<float>(std::log2(line.energy / static_cast<double>(count)) / 2));
  if (amax <= lone_ || amax * amax < line.energy / 2) return;
  lone_ = amax;
  lone_line_ = next_;
}

/// Adds E8M0 exponents by rows and columns, without zeros.
void FigureCounter::take_exponents(std::span<const uint8_t> bytes) {
  const uint64_t width = plan_.scale_columns, first = next_ * plan_.line_bytes;
  row_sums_.resize(std::max<size_t>(row_sums_.size(), (first + bytes.size() + width - 1) / width));
  row_counts_.resize(row_sums_.size());
  for (uint64_t at = 0; at < bytes.size();) {
    // The first row and the last one may be in several pieces.
    const uint64_t row = (first + at) / width, column = (first + at) % width, left = bytes.size() - at;
    const bool is_whole = column == 0 && left >= width;
    const uint64_t count = is_whole ? width : std::min(width - column, left);
    const uint64_t rows =
        is_whole ? std::min<uint64_t>(left / width, static_cast<uint64_t>(kMostLines - column_lines_)) : 1;
    const std::span<const ByteSums> sums = add_bytes(&bytes[at], count, rows, 1, width, column);
    for (uint64_t i = 0; i < rows; ++i) {
      row_sums_[row + i] += static_cast<float>(sums[i].sum) - kE8m0Bias * static_cast<float>(sums[i].count);
      row_counts_[row + i] += static_cast<uint32_t>(sums[i].count);
    }
    at += rows * count;
  }
}

/// Adds the logarithms of scales from `first` on: to eighths of octaves by rows and columns, which is enough
/// to compare these.
template <class T, class Add>
void FigureCounter::take_levels(const T* scales, uint64_t count, uint64_t first, const Add& add) {
  constexpr uint64_t kMost = LogSums::kMostFactors / 2 * LogSums::kLanes;
  const uint64_t width = plan_.scale_columns;
  if (width > 0) {
    column_sums_.resize(width);
    column_counts_.resize(width);
    row_sums_.resize(std::max<size_t>(row_sums_.size(), (first + count + width - 1) / width));
    row_counts_.resize(row_sums_.size());
  }
  for (uint64_t at = 0; at < count;) {
    const uint64_t column = width > 0 ? (first + at) % width : 0;
    const uint64_t some = std::min({kMost, count - at, width > 0 ? width - column : count});
    const auto factors = static_cast<int>((some + LogSums::kLanes - 1) / LogSums::kLanes);
    if (factors_ + factors > LogSums::kMostFactors) end_logs();
    factors_ += factors;
    LevelSums line;
    add(&scales[at], some, width > 0 ? &column_sums_[column] : nullptr,
        width > 0 ? &column_counts_[column] : nullptr, line, logs_);
    if (width > 0) {
      const uint64_t row = (first + at) / width;
      row_sums_[row] += static_cast<float>(line.eighths) / 8;
      row_counts_[row] += static_cast<uint32_t>(line.count);
    }
    at += some;
  }
}

void FigureCounter::end_logs() {
  if (factors_ == 0) return;
  octaves_ += static_cast<double>(logs_.exponents);
  for (const double product : logs_.products) octaves_ += std::log2(product);
  logs_ = {};
  factors_ = 0;
}

}  // namespace twofour
