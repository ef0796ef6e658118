#include <algorithm>
#include <cmath>

#include "formats/e2m1.h"
#include "formats/e4m3.h"
#include "lib/lint/bytes/figures.h"
#include "lib/lint/bytes/number_kind.h"

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

/// Converts the counts of bytes to counts of E2M1 codes.
std::array<double, 16> codes_of(const std::array<uint64_t, 256>& bytes) {
  std::array<double, 16> codes{};
  for (unsigned b = 0; b < 256; ++b) {
    codes[b & 15] += static_cast<double>(bytes[b]);
    codes[b >> 4] += static_cast<double>(bytes[b]);
  }
  return codes;
}

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

}  // namespace

MatrixFigures FigureCounter::figures() const {
  MatrixFigures f = sums_;
  f.ordered = hash_in_order();
  const NumberKind kind = plan_.kind;
  if (kind == NumberKind::kUnknown) return f;
  double numbers = 0, zeros = 0, negative = static_cast<double>(negative_), most = 0, energy = energy_;
  for (unsigned s = 0; s < 256; ++s) {
    if (scale_energies_[s] == 0 || !e4m3_is_block_scale(s)) continue;
    const double scale = e4m3_units(s);  // in units of 2^-9; codes are in units of 1/2
    energy += scale * scale * static_cast<double>(scale_energies_[s]) * 0x1p-20;
  }
  double amax = amax_;
  if (kind == NumberKind::kE2m1) {
    const auto codes = codes_of(numbers_);
    for (const double c : codes) numbers += c;
    for (size_t c = 0; c < 16; ++c) {
      f.code_shares[c] = static_cast<float>(share_of(codes[c], numbers));
      most = std::max(most, codes[c]);
      if (c > 8) negative += codes[c];
      if (codes[c] == 0) continue;
      const double value = e2m1_to_float(static_cast<unsigned>(c) & 7u);
      if (blocks_ == 0) energy += codes[c] * value * value, amax = std::max(amax, value);
    }
    zeros = codes[0] + codes[8];
    most = std::max(most, zeros);
  } else if (kind == NumberKind::kInt4) {
    constexpr int kZero = 8;
    const std::array<double, 16> codes = codes_of(numbers_);
    for (const double count : codes) numbers += count;
    for (size_t c = 0; c < codes.size(); ++c) {
      f.code_shares[c] = static_cast<float>(share_of(codes[c], numbers));
      most = std::max(most, codes[c]);
      const double value = std::abs(static_cast<int>(c) - kZero);
      if (c < kZero) negative += codes[c];
      energy += codes[c] * value * value;
      if (codes[c] > 0) amax = std::max(amax, value);
    }
    zeros = codes[kZero];
  } else {
    const bool fp8 = kind == NumberKind::kE4m3, exponents = kind == NumberKind::kE8m0,
               int8 = kind == NumberKind::kInt8;
    double sum = 0, squares = 0;
    for (unsigned i = 0; i < 256; ++i) {
      const auto count = static_cast<double>(numbers_[i]);
      numbers += count;
      most = std::max(most, count);
      if (count == 0 || (!fp8 && !exponents && !int8) || (fp8 && e4m3_is_nan(i))) continue;
      const double value = fp8         ? double{e4m3_to_float(i & 0x7F)}
                           : exponents ? std::exp2(static_cast<double>(i) - 127)
                                       : std::abs(static_cast<int8_t>(i));
      energy += count * value * value;
      amax = std::max(amax, value);
      if ((fp8 && i > 0x80) || (int8 && i >= 0x80)) negative += count;
      sum += count * i;
      squares += count * i * i;
      f.scale_values += exponents;
    }
    if (plan_.is_scale) {
      f.log2_mean = share_of(octaves_, numbers - static_cast<double>(numbers_[0]));
      if (exponents) f.log2_mean = share_of(sum, numbers - static_cast<double>(numbers_[0])) - 127;
    }
    if (exponents) {
      f.scale_mean = share_of(sum, numbers) - 127;
      f.scale_sd = std::sqrt(std::max(0.0, share_of(squares, numbers) - std::pow(f.scale_mean + 127, 2)));
    }
    if (int8) {
      f.unevenness = unevenness_of(numbers_);
      f.integers = static_cast<int>(std::ranges::count_if(numbers_, [](uint64_t n) { return n > 0; }));
    }
    zeros = static_cast<double>(fp8 ? numbers_[0] + numbers_[0x80] : numbers_[0]);
    if (fp8) {
      f.octaves = octaves_of(numbers_);
      f.unevenness = unevenness_of(numbers_);
      f.full_share = share_of(static_cast<double>(numbers_[0x7E] + numbers_[0xFE]), numbers);
    }
  }
  f.sampled = static_cast<uint64_t>(numbers);
  f.zero_share = share_of(zeros, numbers);
  f.negative_share = share_of(negative, numbers - zeros);
  f.constant_share = share_of(most, numbers);
  f.log2_rms = std::log2(std::sqrt(share_of(energy, numbers)));
  f.log2_amax = std::log2(amax);
  const bool has_octaves = kind != NumberKind::kInt8 && kind != NumberKind::kE2m1 &&
                           kind != NumberKind::kInt4 && kind != NumberKind::kE8m0;
  if (has_octaves && std::isfinite(f.log2_rms)) {
    double small = 0;
    for (unsigned i = 0; i < 256; ++i) {
      const double value =
          kind == NumberKind::kE4m3 ? e4m3_octaves()[i & 0x7F] : static_cast<double>(i) - 127;
      const bool is_number = kind == NumberKind::kE4m3 ? (i & 0x7F) != 0 : i > 0;
      if (is_number && value < f.log2_rms - 4) small += static_cast<double>(numbers_[i]);
    }
    f.small_share = share_of(small, numbers - zeros);
  }
  if (blocks_ > 0) {
    f.full_blocks = share_of(static_cast<double>(full_blocks_), static_cast<double>(blocks_ - zero_blocks_));
    double count = 0, sum = 0, squares = 0;
    for (unsigned s = 1; s < kE4m3Nan; ++s) {
      if (scale_bytes_[s] == 0) continue;
      const auto c = static_cast<double>(scale_bytes_[s]);
      const double x = e4m3_octaves()[s];
      ++f.scale_values;
      count += c;
      sum += c * x;
      squares += c * x * x;
    }
    f.scale_mean = share_of(sum, count);
    f.scale_sd = std::sqrt(std::max(0.0, share_of(squares, count) - f.scale_mean * f.scale_mean));
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
    const bool zero = is_zero(c);
    f.zero_columns += zero;
    f.trailing_zero_columns = zero ? f.trailing_zero_columns + 1 : 0;
  }
  return f;
}

}  // namespace twofour
