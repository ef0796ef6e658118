#include <algorithm>
#include <cmath>

#include "formats/e2m1.h"
#include "formats/e4m3.h"
#include "lib/lint/bytes/figures.h"

namespace twofour {
namespace {

/// Returns log2 of each E4M3 byte below 0x7F; 0 for zero and NaN.
const std::array<double, 128>& e4m3_octaves() {
  static const std::array<double, 128> table = [] {
    std::array<double, 128> t{};
    for (unsigned b = 1; b < kE4m3Nan; ++b) t[b] = std::log2(double{e4m3_to_float(b)});
    return t;
  }();
  return table;
}

double share_of(double part, double all) { return all > 0 ? part / all : 0; }

/// Returns the number of octaves by which the density falls over eight codes of E4M3, below the median; 0:
/// there are too few numbers. The density of weights is flat near zero. So it falls by one octave, or by two
/// if the bytes are E5M2.
double octaves_of(const std::array<uint64_t, 256>& bytes) {
  std::array<double, 128> count{};
  double all = 0, below = 0;
  for (unsigned b = 0; b < 256; ++b) count[b & 0x7F] += static_cast<double>(bytes[b]);
  for (unsigned b = 1; b < 0x7F; ++b) all += count[b];
  unsigned median = 1;
  while (median < 0x7F && below + count[median] < all / 2) below += count[median++];
  if (median < 8 + 24) return 0;
  double near = 0, far = 0;
  for (unsigned i = 1; i <= 8; ++i) {
    near += count[median - 8 - i];
    far += count[median - 16 - i];
  }
  constexpr double kFew = 32;
  return near >= kFew && near > far ? std::log2(near / std::max(far, 1.0)) : 0;
}

/// Returns half the sum of the differences between the share of each finite byte and an equal share.
double unevenness_of(const std::array<uint64_t, 256>& bytes) {
  constexpr double kEqual = 1.0 / 254;
  double all = 0, off = 0;
  for (unsigned b = 0; b < 256; ++b) all += e4m3_is_nan(b) ? 0 : static_cast<double>(bytes[b]);
  for (unsigned b = 0; b < 256; ++b) {
    if (!e4m3_is_nan(b)) off += std::fabs(share_of(static_cast<double>(bytes[b]), all) - kEqual);
  }
  return off / 2;
}

/// Returns chunks in the order of their lines. Parts of a matrix may end in another order.
std::vector<Chunk> sorted(std::vector<Chunk> chunks) {
  std::ranges::sort(chunks, {}, &Chunk::first_line);
  return chunks;
}

}  // namespace

void FigureCounter::sum_codes(Totals& all, MatrixFigures& f) const {
  constexpr int kInt4Zero = 8;
  const bool integers = plan_.kind == NumberKind::kInt4;
  for (size_t c = 0; c < 16; ++c) {
    const auto count = static_cast<double>(numbers_[c]);
    f.code_shares[c] = static_cast<float>(share_of(count, all.numbers));
    all.most = std::max(all.most, count);
    const double value = integers ? std::abs(static_cast<int>(c) - kInt4Zero)
                                  : double{e2m1_to_float(static_cast<unsigned>(c) & 7u)};
    if (count == 0 || (!integers && blocks_ > 0)) continue;
    all.energy += count * value * value;
    all.amax = std::max(all.amax, value);
  }
  if (!integers) all.most = std::max(all.most, all.zeros);
}

void FigureCounter::sum_sixes(Totals& all, MatrixFigures& f) const {
  for (unsigned c = 0; c < 64; ++c) {
    const auto count = static_cast<double>(numbers_[c]);
    f.code_shares[c >> 2] += static_cast<float>(share_of(count, all.numbers));
    all.most = std::max(all.most, count);
    const double value = e2m3_to_float(c & 31u);
    all.energy += count * value * value;
    if (count > 0) all.amax = std::max(all.amax, value);
  }
  all.most = std::max(all.most, all.zeros);
}

void FigureCounter::sum_bytes(Totals& all, MatrixFigures& f) const {
  const NumberKind kind = plan_.kind;
  const bool fp8 = kind == NumberKind::kE4m3, exponents = kind == NumberKind::kE8m0,
             int8 = kind == NumberKind::kInt8;
  double sum = 0, squares = 0;
  for (unsigned i = 0; i < 256; ++i) {
    const auto count = static_cast<double>(numbers_[i]);
    all.most = std::max(all.most, count);
    if (count == 0 || (!fp8 && !exponents && !int8) || (fp8 && e4m3_is_nan(i))) continue;
    const double value = fp8         ? double{e4m3_to_float(i & 0x7F)}
                         : exponents ? std::exp2(static_cast<double>(i) - 127)
                                     : std::abs(static_cast<int8_t>(i));
    all.energy += count * value * value;
    all.amax = std::max(all.amax, value);
    sum += count * i;
    squares += count * i * i;
    f.scale_values += exponents;
  }
  if (plan_.is_scale) {
    f.log2_mean = exponents ? share_of(sum, all.numbers - all.zeros) - 127
                            : share_of(octaves_, all.numbers - all.zeros);
  }
  if (exponents) {
    f.scale_mean = share_of(sum, all.numbers) - 127;
    f.scale_sd = std::sqrt(std::max(0.0, share_of(squares, all.numbers) - std::pow(f.scale_mean + 127, 2)));
  }
  if (int8) {
    f.unevenness = static_cast<float>(unevenness_of(numbers_));
    f.integers = static_cast<int>(std::ranges::count_if(numbers_, [](uint64_t n) { return n > 0; }));
  }
  if (fp8) {
    f.bits = 0;
    for (const Chunk& c : chunks_) f.bits = static_cast<uint8_t>(f.bits | c.any_bits);
    f.octaves = static_cast<float>(octaves_of(numbers_));
    f.unevenness = static_cast<float>(unevenness_of(numbers_));
    f.full_share = static_cast<float>(share_of(static_cast<double>(full_), all.numbers));
    f.next_share = static_cast<float>(share_of(static_cast<double>(next_full_), all.numbers));
  }
}

void FigureCounter::measure_small(double in_sample, MatrixFigures& f) const {
  const bool fp8 = plan_.kind == NumberKind::kE4m3;
  double small = 0;
  for (unsigned i = 0; i < 256; ++i) {
    const double value = fp8 ? e4m3_octaves()[i & 0x7F] : static_cast<double>(i) - 127;
    const bool is_number = fp8 ? (i & 0x7F) != 0 : i > 0;
    if (is_number && value < f.log2_rms - 4) small += static_cast<double>(numbers_[i]);
  }
  const double sampled_zeros =
      static_cast<double>(numbers_[0]) + (fp8 ? static_cast<double>(numbers_[0x80]) : 0);
  f.small_share = share_of(small, in_sample - sampled_zeros);
}

void FigureCounter::measure_block_scales(MatrixFigures& f) const {
  f.full_blocks = share_of(static_cast<double>(full_blocks_), static_cast<double>(blocks_ - zero_blocks_));
  double count = 0, sum = 0, squares = 0;
  // Scales of blocks of zeros carry nothing. Producers store a small one, or 1.
  constexpr unsigned kOne = 0x38;
  uint64_t left_out = zero_blocks_;
  for (unsigned s = 0; s < kE4m3Nan; ++s) {
    const uint64_t unused = s < kTinyScale || s == kOne ? std::min(left_out, scale_bytes_[s]) : 0;
    left_out -= unused;
    if (s == 0 || scale_bytes_[s] == unused) continue;
    const auto c = static_cast<double>(scale_bytes_[s] - unused);
    const double x = e4m3_octaves()[s];
    ++f.scale_values;
    count += c;
    sum += c * x;
    squares += c * x * x;
  }
  f.scale_mean = share_of(sum, count);
  f.scale_sd = std::sqrt(std::max(0.0, share_of(squares, count) - f.scale_mean * f.scale_mean));
}

MatrixFigures FigureCounter::figures() const {
  MatrixFigures f = sums_;
  f.ordered = hash_in_order();
  const NumberKind kind = plan_.kind;
  if (kind == NumberKind::kUnknown) return f;
  Totals all{.numbers = static_cast<double>(counted_),
             .zeros = static_cast<double>(zeros_),
             .energy = energy_,
             .amax = amax_};
  for (unsigned s = 0; s < 256; ++s) {
    if (scale_energies_[s] == 0 || !e4m3_is_block_scale(s)) continue;
    const double scale = e4m3_units(s);  // in units of 2^-9; codes are in units of 1/2
    all.energy += scale * scale * static_cast<double>(scale_energies_[s]) * 0x1p-20;
  }
  const bool has_codes = kind == NumberKind::kE2m1 || kind == NumberKind::kE2m3 || kind == NumberKind::kInt4;
  if (kind == NumberKind::kE2m3) {
    sum_sixes(all, f);
  } else {
    has_codes ? sum_codes(all, f) : sum_bytes(all, f);
  }
  f.counted = counted_;
  f.zero_share = share_of(all.zeros, all.numbers);
  f.negative_share = share_of(static_cast<double>(negative_), all.numbers - all.zeros);
  // Exponents of floats, and bytes of FP8, are those of sampled lines.
  const bool fp8 = kind == NumberKind::kE4m3, is_sampled = width_of(kind) > 1 || fp8;
  double in_sample = 0;
  for (const uint64_t count : numbers_) in_sample += static_cast<double>(count);
  f.constant_share = share_of(all.most, is_sampled ? in_sample : all.numbers);
  const double measured = blocks_ > 0 ? static_cast<double>(energy_numbers_) : fp8 ? in_sample : all.numbers;
  f.log2_rms = std::log2(std::sqrt(share_of(all.energy, measured)));
  f.log2_amax = std::log2(all.amax);
  const bool has_octaves = kind != NumberKind::kInt8 && kind != NumberKind::kE8m0 && !has_codes;
  if (has_octaves && std::isfinite(f.log2_rms)) measure_small(in_sample, f);
  if (blocks_ > 0) measure_block_scales(f);
  // Pruned blocks have scales of their own, so that these have no order.
  constexpr uint64_t kPruned = 10;
  if (kPruned * zero_blocks_ > blocks_) f.swizzled = f.transposed = {};
  count_columns(f);
  judge_levels(f);
  judge_dead_blocks(f);
  if (!plan_.is_scale) f.region = odd_region(kind, sorted(chunks_));
  if (pieces_) f.repeat = pieces_->longest();
  f.foreign = looks_.longest();
  f.zero_bytes = looks_.zeros();
  f.foreign_scales = scale_looks_.longest();
  if (scale_pieces_) {
    f.repeated_scales = scale_pieces_->repeated_share();
    f.scale_repeat = scale_pieces_->longest();
  }
  f.is_grid = is_grid_ && has_float_rows();
  return f;
}

}  // namespace twofour
