#include "lib/lint/bytes/figures.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

#include "formats/e2m1.h"
#include "formats/e4m3.h"
#include "lib/checkpoint/tensor_values.h"
#include "lib/io/hash.h"

namespace twofour {
namespace {

constexpr uint64_t kSampledNumbers = 1u << 14, kSampledLines = 8;
constexpr uint64_t kCodeBits = 0x7777777777777777u, kCodeUnits = 0x1111111111111111u;
constexpr uint64_t kGolden = 0x9E3779B97F4A7C15u;

uint64_t mix_hash(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

uint64_t word_of(const uint8_t* bytes) {
  uint64_t word = 0;
  std::memcpy(&word, bytes, sizeof(word));
  return word;
}

int width_of(NumberKind kind) {
  return kind == NumberKind::kF32 ? 4 : kind == NumberKind::kBf16 || kind == NumberKind::kF16 ? 2 : 1;
}

DType type_of(NumberKind kind) {
  return kind == NumberKind::kBf16 ? DType::kBF16 : kind == NumberKind::kF16 ? DType::kF16 : DType::kF32;
}

/// Bits of a byte at `i` of a line that are magnitudes.
uint8_t magnitude_bits(NumberKind kind, uint64_t i) {
  if (kind == NumberKind::kE2m1) return 0x77;
  const auto width = static_cast<uint64_t>(width_of(kind));
  return kind != NumberKind::kUnknown && i % width == width - 1 ? 0x7F : 0xFF;
}

/// Whether all of a line is zero or -0; of most lines the first bytes show that it is not.
bool is_zero_line(NumberKind kind, std::span<const uint8_t> bytes) {
  for (uint64_t i = 0; i < bytes.size(); ++i) {
    if ((bytes[i] & magnitude_bits(kind, i)) != 0) return false;
  }
  return true;
}

/// log2 of E4M3 by byte below 0x7F; 0 of zero and NaN.
const std::array<double, 128>& e4m3_octaves() {
  static const std::array<double, 128> table = [] {
    std::array<double, 128> t{};
    for (unsigned b = 1; b < kE4m3Nan; ++b) t[b] = std::log2(double{e4m3_to_float(b)});
    return t;
  }();
  return table;
}

/// Sums of (code in halves)^2 of both codes of a byte.
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

void or_into(std::vector<uint8_t>& to, const uint8_t* from) {
  uint8_t* const out = to.data();
  const size_t count = to.size();
#pragma omp simd
  for (size_t i = 0; i < count; ++i) out[i] = static_cast<uint8_t>(out[i] | from[i]);
}

/// Share of the variance of cells [rows, cols] that means of their rows and columns explain, beyond what they
/// explain of noise.
double explained(const uint8_t* cells, uint64_t rows, uint64_t cols) {
  if (rows < 4 || cols < 4) return 0;
  double sum = 0, squares = 0, by_rows = 0, by_cols = 0;
  // Sums of up to 256 bytes fit 16 bits, with which vectors go twice as fast.
  constexpr uint64_t kShort = 256;
  std::vector<uint32_t> col_sums(cols);
  std::vector<uint16_t> short_sums(cols);
  for (uint64_t r = 0; r < rows; ++r) {
    uint32_t row = 0;
    uint64_t square = 0;
    for (uint64_t begin = 0; begin < cols; begin += kShort) {
      const uint8_t* line = cells + r * cols + begin;
      uint16_t* const columns = short_sums.data() + begin;
      const uint64_t count = std::min(kShort, cols - begin);
      uint16_t part = 0;
      int32_t part_square = 0;
#pragma omp simd reduction(+ : part, part_square)
      for (uint64_t c = 0; c < count; ++c) {
        const int16_t x = line[c];
        part = static_cast<uint16_t>(part + x);
        part_square += x * x;
        columns[c] = static_cast<uint16_t>(columns[c] + x);
      }
      row += part;
      square += static_cast<uint64_t>(part_square);
    }
    sum += row;
    squares += static_cast<double>(square);
    by_rows += double{static_cast<double>(row)} * row;
    if (r % kShort != kShort - 1 && r != rows - 1) continue;
    for (uint64_t c = 0; c < cols; ++c) col_sums[c] += std::exchange(short_sums[c], uint16_t{0});
  }
  for (uint64_t c = 0; c < cols; ++c) by_cols += double{static_cast<double>(col_sums[c])} * col_sums[c];
  const auto r = static_cast<double>(rows), c = static_cast<double>(cols), n = r * c;
  const double base = sum * sum / n, total = squares - base;
  if (total <= 0) return 0;
  const double rest = total - (by_rows / c - base) - (by_cols / r - base);
  return 1 - (rest / ((r - 1) * (c - 1))) / (total / (n - 1));
}

/// Its standard deviation where there is nothing to explain.
double explained_error(uint64_t rows, uint64_t cols) {
  const auto r = static_cast<double>(rows), c = static_cast<double>(cols);
  return std::sqrt(2 * (r + c)) / (r * c);
}

}  // namespace

uint64_t MatrixPlan::sampled() const {
  const uint64_t per_byte = kind == NumberKind::kE2m1 ? 2 : 1;
  const uint64_t numbers =
      std::max<uint64_t>(1, line_bytes * per_byte / static_cast<uint64_t>(width_of(kind)));
  return std::min(lines, std::max(kSampledLines, kSampledNumbers / numbers));
}

uint64_t MatrixPlan::next_sampled(uint64_t i) const {
  const uint64_t ranges = sampled();
  if (ranges == lines) return i;
  for (uint64_t range = i * ranges / lines; range < ranges; ++range) {
    const uint64_t begin = (range * lines + ranges - 1) / ranges,
                   end = ((range + 1) * lines + ranges - 1) / ranges;
    const uint64_t line = begin + mix_hash(range + kGolden) % (end - begin);
    if (line >= i) return line;
  }
  return lines;
}

FigureCounter::FigureCounter(const MatrixPlan& plan, uint64_t first_line)
    : plan_(plan), next_(first_line), sample_(plan.next_sampled(first_line)) {
  sums_.plan = plan;
}

bool FigureCounter::is_new(uint64_t hash) {
  if (2 * (seen_count_ + 1) > seen_.size()) {
    constexpr uint64_t kFirst = 1u << 14;  // most matrices fit at once
    std::vector<uint64_t> old(
        std::max<size_t>(4 * seen_.size(), std::bit_ceil(2 * std::min(plan_.lines, kFirst))));
    old.swap(seen_);
    for (const uint64_t h : old) {
      if (h == 0) continue;
      size_t at = h & (seen_.size() - 1);
      while (seen_[at] != 0) at = (at + 1) & (seen_.size() - 1);
      seen_[at] = h;
    }
  }
  size_t at = hash & (seen_.size() - 1);
  for (; seen_[at] != 0; at = (at + 1) & (seen_.size() - 1)) {
    if (seen_[at] == hash) return false;
  }
  seen_[at] = hash;
  ++seen_count_;
  return true;
}

void FigureCounter::add(std::span<const uint8_t> bytes, std::span<const uint8_t> scales) {
  const uint64_t count = plan_.line_bytes > 0 ? (bytes.size() + plan_.line_bytes - 1) / plan_.line_bytes : 0;
  if (next_ == 0 && lines_ == 0 && plan_.scale_bytes > 0) measure_order(scales);
  for (uint64_t i = 0; i < count; ++i, ++next_, ++lines_) {
    const uint64_t begin = i * plan_.line_bytes;
    const auto line = bytes.subspan(begin, std::min(plan_.line_bytes, bytes.size() - begin));
    const uint64_t codes = hash_bytes_64(line);
    const uint64_t place = (next_ + 1) * kGolden;
    uint64_t hash = codes;
    if (plan_.scale_bytes > 0) {
      const auto of_line = scales.subspan(i * plan_.scale_bytes, plan_.scale_bytes);
      const uint64_t own = hash_bytes_64(of_line);
      sums_.same_scale_lines += own == last_scales_;
      last_scales_ = own;
      hash = mix_hash(hash + kGolden * own);
      sums_.codes += mix_hash(codes ^ place);
      sums_.scales += mix_hash(own ^ place);
    } else {
      sums_.ordered += mix_hash(hash ^ place);
    }
    sums_.unordered += plan_.scale_bytes > 0 ? hash : mix_hash(hash);
    if (is_zero_line(plan_.kind, line)) {
      ++sums_.zero_lines;
      if (++zero_run_ > sums_.longest_zero_lines) {
        sums_.longest_zero_lines = zero_run_;
        sums_.first_zero_line = next_ + 1 - zero_run_;
      }
    } else {
      zero_run_ = 0;
      if (plan_.is_rows && !is_new(codes | 1)) {
        ++sums_.repeated_lines;
        sums_.doubled_lines += codes == last_codes_;
      }
    }
    last_codes_ = codes;
    if (next_ != sample_) continue;
    take_line(line, scales.data() + i * plan_.scale_bytes);
    sample_ = plan_.next_sampled(next_ + 1);
  }
}

void FigureCounter::take_line(std::span<const uint8_t> bytes, const uint8_t* scales) {
  if (plan_.kind == NumberKind::kUnknown) return;
  if (plan_.is_rows) take_columns(bytes.data());
  if (plan_.scale_bytes > 0) {
    take_blocks(bytes.data(), scales);
    sums_.flat_scale_lines += std::memcmp(scales, scales + 1, plan_.scale_bytes - 1) == 0;
  } else {
    take_numbers(bytes);
  }
}

void FigureCounter::take_columns(const uint8_t* bytes) {
  if (plan_.k_outer) {
    columns_.resize(plan_.line_bytes / 8);
    for (uint64_t row = 0; row < 8; ++row) {
      or_into(columns_, bytes + row * columns_.size());
    }
    return;
  }
  columns_.resize(plan_.line_bytes);
  or_into(columns_, bytes);
}

void FigureCounter::take_blocks(const uint8_t* codes, const uint8_t* scales) {
  const auto& energies = pair_energies();
  for (uint64_t b = 0; b < plan_.scale_bytes; ++b) {
    uint8_t block[8];
    if (plan_.k_outer) {
      for (uint64_t row = 0; row < 8; ++row) block[row] = codes[row * plan_.scale_bytes + b];
    } else {
      std::memcpy(block, codes + 8 * b, sizeof(block));
    }
    uint32_t energy = 0;
    for (const uint8_t byte : block) {
      energy += energies[byte];
      ++numbers_[byte];
    }
    const uint64_t m = word_of(block) & kCodeBits;
    full_blocks_ += (m & m >> 1 & m >> 2 & kCodeUnits) != 0;
    ++scale_bytes_[scales[b]];
    scale_energies_[scales[b]] += energy;
  }
  blocks_ += plan_.scale_bytes;
}

void FigureCounter::take_numbers(std::span<const uint8_t> bytes) {
  if (width_of(plan_.kind) == 1) {
    for (const uint8_t byte : bytes) ++numbers_[byte];
    return;
  }
  floats_.resize(bytes.size() / static_cast<uint64_t>(width_of(plan_.kind)));
  to_floats(type_of(plan_.kind), bytes.data(), floats_);
  for (const float x : floats_) {
    const auto bits = std::bit_cast<uint32_t>(x);
    ++numbers_[bits >> 23 & 0xFF];
    negative_ += x < 0;
    if (!std::isfinite(x)) continue;
    energy_ += double{x} * double{x};
    amax_ = std::max(amax_, std::fabs(double{x}));
  }
}

void FigureCounter::note_amax(double amax) { amax_ = std::max(amax_, amax); }

void FigureCounter::measure_order(std::span<const uint8_t> scales) {
  const uint64_t s = plan_.scale_bytes, n = plan_.lines;
  if (plan_.k_outer || !plan_.is_rows || s < 8) return;
  // A tile of 128 rows and four columns is 512 bytes. Of up to four rows of tiles the first ones, together 32
  // columns: the same bytes as rows that they are stored in, and as tiles. E4M3 bytes grow as logarithms of
  // what they mean.
  constexpr uint64_t kRows = 128, kColumns = 32, kMostTiles = 4;
  const uint64_t columns = std::min(s, kColumns), rows = kRows * columns / s;
  if (s % 4 == 0 && rows >= 4 && scales.size() >= kRows * s) {
    const uint64_t tiles = std::min(s < kColumns ? kMostTiles : kMostTiles / 2, scales.size() / (kRows * s));
    std::vector<uint8_t> lines, tile(kRows * columns);
    for (uint64_t t = 0; t < tiles; ++t) {
      const uint8_t* first = scales.data() + t * kRows * s;
      lines.insert(lines.end(), first, first + rows * s);
      for (uint64_t c = 0; c < columns; c += 4) {
        for (uint64_t r = 0; r < kRows; ++r)
          std::memcpy(&tile[r * columns + c], first + c * kRows + r % 32 * 16 + r / 32 * 4, 4);
      }
      sums_.swizzled.otherwise += explained(tile.data(), kRows, columns) / static_cast<double>(tiles);
    }
    sums_.swizzled.as_stored = explained(lines.data(), tiles * rows, s);
    sums_.swizzled.error = explained_error(kRows, columns) / std::sqrt(static_cast<double>(tiles));
  }
  // Transposed they are [S, N]: some first rows of that.
  const uint64_t turned = std::min<uint64_t>(scales.size() / n, 4096 / n + 8);
  if (n >= 8 && turned >= 8) {
    sums_.transposed = {explained(scales.data(), turned * n / s, s), explained(scales.data(), turned, n),
                        explained_error(turned, n)};
  }
}

void FigureCounter::merge(const FigureCounter& o) {
  lines_ += o.lines_;
  sums_.ordered += o.sums_.ordered;
  sums_.unordered += o.sums_.unordered;
  sums_.codes += o.sums_.codes;
  sums_.scales += o.sums_.scales;
  sums_.zero_lines += o.sums_.zero_lines;
  sums_.repeated_lines += o.sums_.repeated_lines;
  sums_.doubled_lines += o.sums_.doubled_lines;
  sums_.same_scale_lines += o.sums_.same_scale_lines;
  sums_.flat_scale_lines += o.sums_.flat_scale_lines;
  const bool longer = o.sums_.longest_zero_lines > sums_.longest_zero_lines ||
                      (o.sums_.longest_zero_lines == sums_.longest_zero_lines &&
                       o.sums_.first_zero_line < sums_.first_zero_line);
  if (longer) {
    sums_.longest_zero_lines = o.sums_.longest_zero_lines;
    sums_.first_zero_line = o.sums_.first_zero_line;
  }
  if (o.next_ == o.lines_) {  // it began with the first line
    sums_.transposed = o.sums_.transposed;
    sums_.swizzled = o.sums_.swizzled;
  }
  columns_.resize(std::max(columns_.size(), o.columns_.size()));
  for (size_t i = 0; i < o.columns_.size(); ++i)
    columns_[i] = static_cast<uint8_t>(columns_[i] | o.columns_[i]);
  for (size_t i = 0; i < 256; ++i) {
    numbers_[i] += o.numbers_[i];
    scale_bytes_[i] += o.scale_bytes_[i];
    scale_energies_[i] += o.scale_energies_[i];
  }
  blocks_ += o.blocks_;
  full_blocks_ += o.full_blocks_;
  negative_ += o.negative_;
  energy_ += o.energy_;
  amax_ = std::max(amax_, o.amax_);
}

namespace {

double share_of(double part, double all) { return all > 0 ? part / all : 0; }

/// Counts by E2M1 code, from counts by byte.
std::array<double, 16> codes_of(const std::array<uint64_t, 256>& bytes) {
  std::array<double, 16> codes{};
  for (unsigned b = 0; b < 256; ++b) {
    codes[b & 15] += static_cast<double>(bytes[b]);
    codes[b >> 4] += static_cast<double>(bytes[b]);
  }
  return codes;
}

/// Over eight codes of E4M3 the density of weights, which is flat near zero, falls by one octave; where bytes
/// are E5M2 by two. Below the median, in units of octaves; 0 where there are too few to tell.
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

/// Half the sum of how far the shares of finite bytes are from equal ones.
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
  if (plan_.scale_bytes > 0) f.ordered = mix_hash(f.codes + kGolden * f.scales);
  const NumberKind kind = plan_.kind;
  if (kind == NumberKind::kUnknown) return f;
  double numbers = 0, zeros = 0, negative = static_cast<double>(negative_), most = 0, energy = energy_;
  for (unsigned s = 0; s < 256; ++s) {
    if (scale_energies_[s] == 0 || !e4m3_is_block_scale(s)) continue;
    const double scale = e4m3_units(s);  // of 2^-9, codes of 1/2
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
  } else {
    const bool fp8 = kind == NumberKind::kE4m3, exponents = kind == NumberKind::kE8m0;
    double sum = 0, squares = 0;
    for (unsigned i = 0; i < 256; ++i) {
      const auto count = static_cast<double>(numbers_[i]);
      numbers += count;
      most = std::max(most, count);
      if (count == 0 || (!fp8 && !exponents) || (fp8 && e4m3_is_nan(i))) continue;
      const double value = fp8 ? double{e4m3_to_float(i & 0x7F)} : std::exp2(static_cast<double>(i) - 127);
      energy += count * value * value;
      amax = std::max(amax, value);
      if (fp8 && i > 0x80) negative += count;
      sum += count * i;
      squares += count * i * i;
      f.scale_values += exponents;
    }
    if (exponents) {
      f.scale_mean = share_of(sum, numbers) - 127;
      f.scale_sd = std::sqrt(std::max(0.0, share_of(squares, numbers) - std::pow(f.scale_mean + 127, 2)));
    }
    zeros = static_cast<double>(fp8 ? numbers_[0] + numbers_[0x80] : exponents ? 0 : numbers_[0]);
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
  if (kind != NumberKind::kE2m1 && kind != NumberKind::kE8m0 && std::isfinite(f.log2_rms)) {
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
    f.full_blocks = share_of(static_cast<double>(full_blocks_), static_cast<double>(blocks_));
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
  // Columns: of E2M1 two a byte, but of modules with K outermost a byte is a row.
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
  // Of sixteen columns of codes at once: most often none is zero.
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
