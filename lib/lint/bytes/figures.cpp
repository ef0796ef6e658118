#include "lib/lint/bytes/figures.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "formats/e2m1.h"
#include "formats/e4m3.h"
#include "lib/base/io/hash.h"
#include "lib/source/checkpoint/tensor_values.h"

namespace twofour {
namespace {

constexpr uint64_t kSampledNumbers = 1u << 14, kSampledLines = 8;
constexpr uint64_t kGolden = 0x9E3779B97F4A7C15u;

uint64_t mix_hash(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

DType type_of(NumberKind kind) {
  return kind == NumberKind::kBf16 ? DType::kBF16 : kind == NumberKind::kF16 ? DType::kF16 : DType::kF32;
}

/// True if all numbers of a line are zero or -0. For most lines, the first bytes show that they are not.
bool is_zero_line(NumberKind kind, std::span<const uint8_t> bytes) {
  if (kind == NumberKind::kInt4) return std::ranges::all_of(bytes, [](uint8_t b) { return b == 0x88; });
  for (uint64_t i = 0; i < bytes.size(); ++i) {
    if ((bytes[i] & magnitude_bits(kind, i)) != 0) return false;
  }
  return true;
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

void or_into(std::vector<uint8_t>& to, const uint8_t* from) {
  uint8_t* const out = to.data();
  const size_t count = to.size();
#pragma omp simd
  for (size_t i = 0; i < count; ++i) out[i] = static_cast<uint8_t>(out[i] | from[i]);
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
  constexpr uint64_t kRoom = 4, kFirst = 1u << 14;  // kFirst lines of most matrices fit without growth
  const auto place = [&](uint32_t tag) {
    size_t at = tag & (seen_.size() - 1);
    while (seen_[at] != 0 && seen_[at] != tag) at = (at + 1) & (seen_.size() - 1);
    return at;
  };
  if (kRoom * (seen_count_ + 1) > seen_.size()) {
    std::vector<uint32_t> old(
        std::bit_ceil(std::max(kRoom * std::min(plan_.lines, kFirst), 4 * seen_.size())));
    old.swap(seen_);
    for (const uint32_t tag : old) {
      if (tag != 0) seen_[place(tag)] = tag;
    }
  }
  const auto tag = std::max<uint32_t>(1, static_cast<uint32_t>(hash >> 32));
  const size_t at = place(tag);
  if (seen_[at] == tag) return false;
  seen_[at] = tag;
  ++seen_count_;
  return true;
}

/// True if a line that is not zero has a run of zeros. It is enough if it begins or ends with zeros and is
/// next to a zero line there.
bool FigureCounter::is_torn(std::span<const uint8_t> bytes, uint64_t begin, uint64_t size) const {
  constexpr uint64_t kStep = MatrixFigures::kTorn,
                     kEnd = 32;  // no weights have that many zero bytes by chance
  const auto are_zero = [&](uint64_t at, uint64_t count) {
    return std::ranges::all_of(bytes.subspan(at, count), [](uint8_t b) { return b == 0; });
  };
  for (uint64_t at = 0; at + kStep <= size; at += kStep) {
    if (word_of(&bytes[begin + at]) == 0 && word_of(&bytes[begin + at + kStep / 2]) == 0 &&
        are_zero(begin + at, kStep))
      return true;
  }
  if (size < 2 * kEnd) return false;
  if (zero_run_ > 0 && are_zero(begin, kEnd)) return true;
  const uint64_t end = begin + size;
  return end + size <= bytes.size() && word_of(&bytes[end - 8]) == 0 && are_zero(end - kEnd, kEnd) &&
         is_zero_line(plan_.kind, bytes.subspan(end, size));
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
      sums_.torn_lines += is_torn(bytes, begin, line.size());
      zero_run_ = 0;
      if (plan_.is_rows && !is_new(codes)) {
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
  if (plan_.is_rows) {
    take_columns(bytes.data());
    sums_.echo_lines += is_echo(bytes);
  }
  if (plan_.scale_bytes > 0) {
    take_blocks(bytes.data(), scales);
    sums_.flat_scale_lines += std::memcmp(scales, scales + 1, plan_.scale_bytes - 1) == 0;
  } else {
    take_numbers(bytes);
  }
}

/// True if a line has its numbers twice: both halves are equal, or the numbers are pairs of equal neighbours.
bool FigureCounter::is_echo(std::span<const uint8_t> bytes) const {
  constexpr size_t kFewNumbers = 16;
  const auto width = static_cast<size_t>(width_of(plan_.kind));
  if (bytes.size() < kFewNumbers * width || bytes.size() % (2 * width) != 0 ||
      is_zero_line(plan_.kind, bytes))
    return false;
  if (std::memcmp(bytes.data(), &bytes[bytes.size() / 2], bytes.size() / 2) == 0) return true;
  for (size_t i = 0; i < bytes.size(); i += 2 * width) {
    if (std::memcmp(&bytes[i], &bytes[i + width], width) != 0) return false;
  }
  return true;
}

void FigureCounter::take_columns(const uint8_t* bytes) {
  if (plan_.kind == NumberKind::kInt4) return;  // the bits of a zero are not zero
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
    zero_blocks_ += energy == 0;
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
    if (plan_.is_scale && x != 0) octaves_ += std::log2(std::fabs(double{x}));
    amax_ = std::max(amax_, std::fabs(double{x}));
  }
}

void FigureCounter::note_amax(double amax) { amax_ = std::max(amax_, amax); }

uint64_t FigureCounter::hash_in_order() const {
  return plan_.scale_bytes > 0 ? mix_hash(sums_.codes + kGolden * sums_.scales) : sums_.ordered;
}

void FigureCounter::merge(const FigureCounter& o) {
  lines_ += o.lines_;
  using F = MatrixFigures;
  for (const auto sum :
       {&F::ordered, &F::unordered, &F::codes, &F::scales, &F::zero_lines, &F::torn_lines, &F::repeated_lines,
        &F::doubled_lines, &F::same_scale_lines, &F::flat_scale_lines, &F::echo_lines})
    sums_.*sum += o.sums_.*sum;
  const bool longer = o.sums_.longest_zero_lines > sums_.longest_zero_lines ||
                      (o.sums_.longest_zero_lines == sums_.longest_zero_lines &&
                       o.sums_.first_zero_line < sums_.first_zero_line);
  if (longer) {
    sums_.longest_zero_lines = o.sums_.longest_zero_lines;
    sums_.first_zero_line = o.sums_.first_zero_line;
  }
  if (o.next_ == o.lines_) {  // the other part began with the first line
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
  zero_blocks_ += o.zero_blocks_;
  negative_ += o.negative_;
  energy_ += o.energy_;
  octaves_ += o.octaves_;
  amax_ = std::max(amax_, o.amax_);
}

}  // namespace twofour
