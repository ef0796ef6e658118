#include "lib/lint/bytes/tensor_scan.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "formats/e4m3.h"
#include "formats/layouts/layouts.h"
#include "formats/weight_dialect.h"
#include "lib/lint/chunks/number_counts.h"

namespace twofour {
namespace {

HalfRange range_of_halves(const uint8_t* bytes, uint64_t count) {
  return best_count_ops().halves(reinterpret_cast<const uint16_t*>(bytes), count);
}

/// Counts elements in which all bits of `mask` are set: the exponent of NaN and infinity. Also counts
/// elements whose magnitude is `huge` or more.
template <class T>
void count_all_ones(uint64_t offset, std::span<const uint8_t> bytes, T mask, T magnitude,
                    TensorCounts& counts, T huge) {
  const uint64_t count = bytes.size() / sizeof(T);
  const auto at = [&](uint64_t i) {
    T value;
    std::memcpy(&value, &bytes[i * sizeof(T)], sizeof(T));
    return value;
  };
  constexpr uint64_t kStep = 4096;
  for (uint64_t begin = 0; begin < count; begin += kStep) {
    const uint64_t end = std::min(count, begin + kStep);
    if constexpr (sizeof(T) == 1) {
      if (mask == 0x7F) {  // E4M3: the magnitude is all that the mask leaves
        const uint8_t most = best_count_ops().largest(&bytes[begin], end - begin);
        counts.any = counts.any || most != 0;
        counts.largest = std::max(counts.largest, most);
        if (most < huge) continue;
      }
    }
    if constexpr (sizeof(T) == 2) {  // BF16 and F16: no bit is between the mask and the sign
      const HalfRange range = range_of_halves(&bytes[2 * begin], end - begin);
      counts.any = counts.any || range.most != 0;
      if (range.most < huge) continue;
    }
    T largest = 0, bits = 0;
    for (uint64_t i = begin; i < end; ++i) {
      const T value = at(i);
      largest = std::max(largest, static_cast<T>(value & mask));
      bits = static_cast<T>(bits | (value & magnitude));
    }
    counts.any = counts.any || bits != 0;
    if constexpr (sizeof(T) == 1) counts.largest = std::max(counts.largest, largest);
    if (largest < huge) continue;
    for (uint64_t i = begin; i < end; ++i) {
      const T exponent = static_cast<T>(at(i) & mask);
      if (exponent < huge) continue;
      const bool finite = exponent != mask;
      (finite ? counts.huge : counts.wrong) += 1;
      uint64_t& first = finite ? counts.first_huge : counts.first;
      first = std::min(first, offset / sizeof(T) + i);
    }
  }
}

/// Counts elements that are zero or negative. NaN and infinity are counted elsewhere.
template <class T>
void count_no_scales(const TensorScan& scan, uint64_t offset, std::span<const uint8_t> bytes, T exponent,
                     TensorCounts& counts) {
  constexpr T kSign = static_cast<T>(T{1} << (8 * sizeof(T) - 1));
  constexpr uint64_t kStep = 4096;
  const uint64_t count = bytes.size() / sizeof(T);
  for (uint64_t begin = 0; begin < count; begin += kStep) {
    const uint64_t end = std::min(count, begin + kStep);
    if constexpr (sizeof(T) == 2) {
      const HalfRange range = range_of_halves(&bytes[2 * begin], end - begin);
      if (range.least > 0 && (scan.scales_integers || (range.bits & kSign) == 0)) continue;
    }
    for (uint64_t i = begin; i < end; ++i) {
      T value;
      std::memcpy(&value, &bytes[i * sizeof(T)], sizeof(T));
      const uint64_t at = offset / sizeof(T) + i;
      if (value == 0 || value == kSign) {
        if (counts.zero++ == 0) counts.first_zero = at;
      } else if (!scan.scales_integers && value > kSign && (value & exponent) != exponent) {
        if (counts.negative++ == 0) counts.first_negative = at;
      }
    }
  }
}

template <class T>
void scan_floats(const TensorScan& scan, uint64_t offset, std::span<const uint8_t> bytes, T exponent,
                 TensorCounts& counts) {
  constexpr T kMagnitude = static_cast<T>(static_cast<T>(~T{0}) >> 1);
  // The bits of 2^64 in types with an eight-bit exponent.
  constexpr int kMantissa = sizeof(T) == 4 ? 23 : 7;
  const bool wide = exponent >> kMantissa == 0xFF;
  const T huge = wide ? static_cast<T>(T{127 + 64} << kMantissa) : exponent;
  count_all_ones<T>(offset, bytes, exponent, kMagnitude, counts, huge);
  if (scan.scaled) count_no_scales<T>(scan, offset, bytes, exponent, counts);
}

/// Counts bytes that have an illegal nibble of metadata. In a legal nibble the first position is less than
/// the second.
void count_illegal_meta(uint64_t offset, std::span<const uint8_t> bytes, TensorCounts& counts) {
  constexpr uint64_t kLow = 0x1111111111111111u;
  const auto illegal = [](uint64_t m) {
    const uint64_t f0 = m & kLow, f1 = m >> 1 & kLow, s0 = m >> 2 & kLow, s1 = m >> 3 & kLow;
    const uint64_t less = (s1 & ~f1) | (~(s1 ^ f1) & s0 & ~f0);
    return ~less & kLow;
  };
  for (uint64_t i = 0; i < bytes.size(); i += 8) {
    uint64_t word = 0x4444444444444444u;  // pads with legal nibbles
    std::memcpy(&word, &bytes[i], std::min<uint64_t>(8, bytes.size() - i));
    const uint64_t bad = illegal(word);
    if (bad == 0) continue;
    for (uint64_t b = 0; b < 8; ++b) {
      if ((bad >> (8 * b) & 0xFF) == 0) continue;
      ++counts.wrong;
      counts.first = std::min(counts.first, offset + i + b);
    }
  }
}

void count_padding(uint64_t offset, std::span<const uint8_t> bytes, TensorCounts& counts) {
  for (uint64_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] == 0) continue;
    ++counts.padding;
    counts.first_padding = std::min(counts.first_padding, offset + i);
  }
}

/// Compares bytes with their copies, which begin at `first`.
void count_copies(uint64_t offset, std::span<const uint8_t> bytes, const uint8_t* first,
                  TensorCounts& counts) {
  if (std::memcmp(bytes.data(), first, bytes.size()) == 0) return;
  for (uint64_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] == first[i]) continue;
    ++counts.copies;
    counts.first_copy = std::min(counts.first_copy, offset + i);
  }
}

/// Scans whole units of a part. Each run of bytes is checked by its kind.
void scan_part(const PartMap& map, uint64_t offset, std::span<const uint8_t> bytes, TensorCounts& counts) {
  const auto unit = static_cast<uint64_t>(map.unit);
  counts.any = true;
  for (uint64_t at = 0; at < bytes.size(); at += unit) {
    const auto index = static_cast<int64_t>((offset + at) / unit) % map.units;
    for (const PartRun& run : map.runs_of(index)) {
      const uint64_t begin = at + static_cast<uint64_t>(run.begin);
      const auto some = bytes.subspan(begin, static_cast<size_t>(run.count));
      if (run.back != 0) {
        count_copies(offset + begin, some, some.data() - run.back, counts);
      } else if (run.kind == ByteKind::kMeta) {
        count_illegal_meta(offset + begin, some, counts);
      } else if (run.kind == ByteKind::kScale) {
        count_scales(some.data(), some.size(), offset + begin, counts.scales);
      } else if (run.kind == ByteKind::kPadding) {
        count_padding(offset + begin, some, counts);
      }
    }
  }
}

/// Returns the check for a part that has one kind of bytes and no copies.
TensorCheck check_of(ByteKind kind) {
  return kind == ByteKind::kMeta    ? TensorCheck::kMeta
         : kind == ByteKind::kScale ? TensorCheck::kBlockScales
                                    : TensorCheck::kNone;
}

/// Returns the scan of part `p` of matrices of that shape, by the layout's own map.
template <class L>
TensorScan scan_of_part(int p, const Shape& shape) {
  TensorScan scan;
  PartMap map = map_part<L>(p, shape);
  if (map.units == 0) return scan;
  const auto is_plain = [&](const std::vector<PartRun>& runs) {
    return runs.empty() || (runs.size() == 1 && runs[0].back == 0 && runs[0].kind == map.last[0].kind &&
                            runs[0].kind != ByteKind::kPadding);
  };
  scan.check = check_of(map.last[0].kind);
  if (is_plain(map.runs) && is_plain(map.last)) return scan;
  scan.check = TensorCheck::kPart;
  scan.unit = static_cast<uint64_t>(map.unit);
  scan.map = std::move(map);
  return scan;
}

/// Returns the scan of a part of an artifact in layout L. nullopt: the tensor is not a part or, with
/// `must_fit`, the first part does not give its shape.
template <class L>
std::optional<TensorScan> plan_part(const LintInput& s, const TensorInfo& t, bool must_fit) {
  if (t.shape.size() != 3 || t.bytes() == 0) return std::nullopt;
  const std::string_view name = t.name;
  const std::string_view suffix = name.substr(name.find_last_of("._") + 1);
  const Shape some{1, kTileAlignment, kTileAlignment};
  for (int p = 0; p < L::part_count; ++p) {
    if (suffix != L::part(p, some).suffix || t.dtype != L::part(p, some).dtype) continue;
    // The first part shows the shape of the matrices, and with it the shapes of all parts.
    const auto first = s.find(t.name.substr(0, t.name.size() - suffix.size()) + L::part(0, some).suffix);
    if (first && s.tensors[*first].shape.size() == 3) {
      const auto& dims = s.tensors[*first].shape;
      const Shape shape = L::shape_of(dims[0], dims[1], dims[2]);
      const bool sound = shape.n > 0 && shape.k > 0 && shape.k % kGroup == 0;
      const Part part = sound ? L::part(p, shape) : Part{};
      if (sound && t.shape == std::vector<int64_t>{dims[0], part.rows, part.cols})
        return scan_of_part<L>(p, shape);
    }
    if (must_fit) continue;
    // If the shape is unknown, only checks that do not depend on it are made.
    const TensorScan plain = scan_of_part<L>(p, some);
    return plain.check == TensorCheck::kPart ? TensorScan{} : plain;
  }
  return std::nullopt;
}

/// True if a U8 tensor holds E8M0 scales, either of MXFP4 with one of its two names, or of MXFP8.
bool is_mx_scale(const LintInput& s, const TensorInfo& t) {
  if (t.dtype == DType::kF8E8M0) return true;
  if (t.dtype != DType::kU8) return false;
  const std::string_view name = t.name;
  if (name.ends_with("_scales"))
    return s.find(std::string(name.substr(0, name.size() - 6)) + "blocks").has_value();
  for (const std::string_view suffix : {".weight_scale", ".weight_scale_inv", ".scale"}) {
    if (!name.ends_with(suffix)) continue;
    const std::string module(name.substr(0, name.size() - suffix.size()));
    return s.find(module + ".weight_packed") || s.find(module + ".weight");
  }
  return false;
}

/// Returns the FP8 or INT4 weights, in any dialect, whose scales the tensor holds.
std::optional<size_t> find_scaled(const LintInput& s, const TensorInfo& t) {
  for (const WeightDialect& d : weight_dialects()) {
    const bool scales = d.format->tiles || d.format->integers;
    if (!scales || !t.name.ends_with(d.scale) || !d.scale_types.has(t.dtype)) continue;
    const auto weight = s.find(t.name.substr(0, t.name.size() - std::string_view(d.scale).size()) + d.weight);
    if (weight && d.weight_types.has(s.tensors[*weight].dtype)) return weight;
  }
  return std::nullopt;
}

}  // namespace

TensorCounts& TensorCounts::operator+=(const TensorCounts& o) {
  using C = TensorCounts;
  for (const auto& [count, at] :
       {std::pair{&C::wrong, &C::first}, std::pair{&C::huge, &C::first_huge},
        std::pair{&C::negative, &C::first_negative}, std::pair{&C::zero, &C::first_zero},
        std::pair{&C::copies, &C::first_copy}, std::pair{&C::padding, &C::first_padding}}) {
    this->*count += o.*count;
    this->*at = std::min(this->*at, o.*at);
  }
  scales += o.scales;
  largest = std::max(largest, o.largest);
  any = any || o.any;
  return *this;
}

TensorScan plan_tensor_scan(const LintInput& s, size_t tensor) {
  const TensorInfo& t = s.tensors[tensor];
  if (!s.layout.empty()) {
    std::optional<TensorScan> part;
    if (s.layout == kMixedLayout) {
      for_each_layout([&]<class L>() {
        if (!part) part = plan_part<L>(s, t, true);
      });
    } else {
      with_layout(s.layout, [&]<class L>() { part = plan_part<L>(s, t, false); });
    }
    if (part) return *part;
  }
  TensorScan scan;
  const std::string_view name = t.name;
  if (is_mx_scale(s, t)) {
    scan.check = TensorCheck::kE8m0;
  } else if (t.dtype == DType::kF8E4M3) {
    const bool scales = name.ends_with("weight_scale");
    scan.check = scales ? TensorCheck::kBlockScales : TensorCheck::kE4m3;
  } else if (t.dtype == DType::kBF16) {
    scan.check = TensorCheck::kBf16;
  } else if (t.dtype == DType::kF16) {
    scan.check = TensorCheck::kF16;
  } else if (t.dtype == DType::kF32) {
    scan.check = TensorCheck::kF32;
  }
  scan.scaled = find_scaled(s, t);
  scan.scales_integers = scan.scaled && s.tensors[*scan.scaled].dtype == DType::kI32;
  return scan;
}

void scan_bytes(const TensorScan& scan, uint64_t offset, std::span<const uint8_t> bytes,
                const HalfRange* range, TensorCounts& counts) {
  constexpr uint16_t kHuge = (127 + 64) << 7, kSign = 0x8000;  // 2^64
  const bool is_sound =
      scan.check == TensorCheck::kBf16 && range != nullptr && range->most < kHuge &&
      (!scan.scaled || (range->least > 0 && (scan.scales_integers || (range->bits & kSign) == 0)));
  if (is_sound) {
    counts.any = counts.any || range->most != 0;
    return;
  }
  switch (scan.check) {
    case TensorCheck::kNone:
      counts.any = true;
      return;
    case TensorCheck::kBf16:
      return scan_floats<uint16_t>(scan, offset, bytes, 0x7F80, counts);
    case TensorCheck::kF16:
      return scan_floats<uint16_t>(scan, offset, bytes, 0x7C00, counts);
    case TensorCheck::kF32:
      return scan_floats<uint32_t>(scan, offset, bytes, 0x7F800000u, counts);
    case TensorCheck::kE4m3:
      return count_all_ones<uint8_t>(offset, bytes, 0x7F, 0x7F, counts, 0x7F);
    case TensorCheck::kE8m0:
      return count_all_ones<uint8_t>(offset, bytes, 0xFF, 0xFF, counts, 0xFF);
    case TensorCheck::kBlockScales:
      return count_scales(bytes.data(), bytes.size(), offset, counts.scales);
    case TensorCheck::kMeta:
      return count_illegal_meta(offset, bytes, counts);
    case TensorCheck::kPart:
      return scan_part(scan.map, offset, bytes, counts);
  }
}

bool has_exchanged_bytes(std::span<const uint8_t> bytes) {
  constexpr int kLeast = 0x35, kMost = 0x40;  // the upper bytes of 2^-21 and of numbers below 8
  constexpr double kNearlyAll = 0.95;
  const size_t count = bytes.size() / 2;
  size_t weights = 0;
  for (size_t i = 0; i < count; ++i) {
    const int magnitude = bytes[2 * i] & 0x7F;
    weights += magnitude >= kLeast && magnitude <= kMost;
  }
  return count > 0 && static_cast<double>(weights) > kNearlyAll * static_cast<double>(count);
}

}  // namespace twofour
