#include "lib/lint/tensor_scan.h"

#include <algorithm>
#include <cstring>

#include "formats/e4m3.h"
#include "formats/layouts/layouts.h"
#include "formats/weight_dialect.h"

namespace twofour {
namespace {

/// Counts elements of which all bits in `mask` are set: the exponent of NaN and infinity.
template <class T>
void count_all_ones(uint64_t offset, std::span<const uint8_t> bytes, T mask, T magnitude,
                    TensorCounts& counts) {
  const uint64_t count = bytes.size() / sizeof(T);
  const auto at = [&](uint64_t i) {
    T value;
    std::memcpy(&value, &bytes[i * sizeof(T)], sizeof(T));
    return value;
  };
  constexpr uint64_t kStep = 4096;
  for (uint64_t begin = 0; begin < count; begin += kStep) {
    const uint64_t end = std::min(count, begin + kStep);
    T largest = 0, bits = 0;
    for (uint64_t i = begin; i < end; ++i) {
      const T value = at(i);
      largest = std::max(largest, static_cast<T>(value & mask));
      bits = static_cast<T>(bits | (value & magnitude));
    }
    counts.any = counts.any || bits != 0;
    if (largest != mask) continue;
    for (uint64_t i = begin; i < end; ++i) {
      if ((at(i) & mask) != mask) continue;
      ++counts.wrong;
      counts.first = std::min(counts.first, offset / sizeof(T) + i);
    }
  }
}

/// Counts elements below zero; NaN and infinity are counted elsewhere.
template <class T>
void count_negative(uint64_t offset, std::span<const uint8_t> bytes, T exponent, TensorCounts& counts) {
  constexpr T kSign = static_cast<T>(T{1} << (8 * sizeof(T) - 1));
  for (uint64_t i = 0; i < bytes.size() / sizeof(T); ++i) {
    T value;
    std::memcpy(&value, &bytes[i * sizeof(T)], sizeof(T));
    if (value <= kSign || (value & exponent) == exponent) continue;  // -0 is zero
    if (counts.negative++ == 0) counts.first_negative = offset / sizeof(T) + i;
  }
}

template <class T>
void scan_floats(const TensorScan& scan, uint64_t offset, std::span<const uint8_t> bytes, T exponent,
                 TensorCounts& counts) {
  constexpr T kMagnitude = static_cast<T>(static_cast<T>(~T{0}) >> 1);
  count_all_ones<T>(offset, bytes, exponent, kMagnitude, counts);
  if (scan.fp8_scales) count_negative<T>(offset, bytes, exponent, counts);
}

/// Counts bytes with an illegal metadata nibble: legal is first < second.
void count_illegal_meta(uint64_t offset, std::span<const uint8_t> bytes, TensorCounts& counts) {
  constexpr uint64_t kLow = 0x1111111111111111u;
  const auto illegal = [](uint64_t m) {
    const uint64_t f0 = m & kLow, f1 = m >> 1 & kLow, s0 = m >> 2 & kLow, s1 = m >> 3 & kLow;
    const uint64_t less = (s1 & ~f1) | (~(s1 ^ f1) & s0 & ~f0);
    return ~less & kLow;
  };
  for (uint64_t i = 0; i < bytes.size(); i += 8) {
    uint64_t word = 0x4444444444444444u;  // legal nibbles behind the end
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

/// Rows of v7-packed, two of them for each block scale: metadata, block scales and their copies.
void scan_packed(uint64_t n, uint64_t offset, std::span<const uint8_t> bytes, TensorCounts& counts) {
  const uint64_t row = 4 * n;
  for (uint64_t at = 0; at + 2 * row <= bytes.size(); at += 2 * row) {
    const uint8_t *even = &bytes[at], *odd = even + row;
    count_illegal_meta(offset + at + 2 * n, {even + 2 * n, n}, counts);
    count_illegal_meta(offset + at + row + 2 * n, {odd + 2 * n, n}, counts);
    count_scales(even + 3 * n, n, offset + at + 3 * n, counts.scales);
    if (std::memcmp(even + 3 * n, odd + 3 * n, n) == 0) continue;
    for (uint64_t i = 3 * n; i < row; ++i) {
      if (even[i] == odd[i]) continue;
      ++counts.copies;
      counts.first_copy = std::min(counts.first_copy, offset + at + row + i);
    }
  }
}

void scan_padded(const TensorScan& scan, uint64_t offset, std::span<const uint8_t> bytes,
                 TensorCounts& counts) {
  count_scales(bytes.data(), bytes.size(), offset, counts.scales);
  for (uint64_t expert = 0; expert < bytes.size(); expert += scan.unit) {
    for (const uint32_t place : scan.padding) {
      if (bytes[expert + place] == 0) continue;
      ++counts.padding;
      counts.first_padding = std::min(counts.first_padding, offset + expert + place);
    }
  }
}

std::string_view part_suffix(std::string_view name) { return name.substr(name.find_last_of("._") + 1); }

/// Where g8's block scales of [n, k] matrices are padding, by the layout's own map.
std::vector<uint32_t> padding_of(int64_t n, int64_t k) {
  const Shape shape{1, n, k};  // interleaving moves rows, not padding
  const Part part = GateUpInterleaved8::part(1, shape);
  std::vector<uint32_t> places;
  for (int64_t row = 0; row < part.rows; ++row) {
    for (int64_t col = 0; col < part.cols; ++col) {
      if (GateUpInterleaved8::source(1, shape, {0, row, col}).byte == kPadding)
        places.push_back(static_cast<uint32_t>(row * part.cols + col));
    }
  }
  return places;
}

/// The check of an artifact's part; kNone where the tensor is none.
TensorScan plan_part(const LintSubject& s, const TensorInfo& t) {
  const std::string_view suffix = part_suffix(t.name);
  TensorScan scan;
  if (t.shape.size() != 3 || t.bytes() == 0) return scan;
  const bool planes = s.layout == KMajorPlanes::name;
  if (planes && suffix == "meta" && t.dtype == DType::kU8) {
    scan.check = TensorCheck::kMeta;
  } else if (planes && suffix == "scale" && t.dtype == DType::kF8E4M3) {
    scan.check = TensorCheck::kBlockScales;
  } else if (s.layout == KMajorPacked::name && suffix == "packed" && t.dtype == DType::kU8 &&
             t.shape[2] % 4 == 0 && t.shape[1] % 2 == 0) {
    scan.check = TensorCheck::kPacked;
    scan.n = static_cast<uint64_t>(t.shape[2]) / 4;
    scan.unit = 8 * scan.n;
  } else if (s.layout == GateUpInterleaved8::name && suffix == "scale" && t.dtype == DType::kF8E4M3) {
    const auto weight = s.find(t.name.substr(0, t.name.size() - suffix.size()) + "weight");
    scan.check = TensorCheck::kBlockScales;
    if (!weight || s.tensors[*weight].shape.size() != 3) return scan;
    const int64_t n = s.tensors[*weight].shape[1], k = 2 * s.tensors[*weight].shape[2];
    const Part part = GateUpInterleaved8::part(1, {1, n, k});
    if (part.rows != t.shape[1] || part.cols != t.shape[2] || part.bytes() > UINT32_MAX) return scan;
    scan.check = TensorCheck::kPaddedScales;
    scan.unit = static_cast<uint64_t>(part.bytes());
    scan.padding = padding_of(n, k);
  }
  return scan;
}

/// Whether a U8 tensor holds E8M0 scales: of MXFP4 in either naming, or MXFP8.
bool is_mx_scale(const LintSubject& s, const TensorInfo& t) {
  if (t.dtype == DType::kF8E8M0) return true;
  if (t.dtype != DType::kU8) return false;
  const std::string_view name = t.name;
  if (name.ends_with("_scales"))
    return s.find(std::string(name.substr(0, name.size() - 6)) + "blocks").has_value();
  constexpr std::string_view kScale = ".weight_scale";
  if (!name.ends_with(kScale)) return false;
  const std::string module(name.substr(0, name.size() - kScale.size()));
  return s.find(module + ".weight_packed") || s.find(module + ".weight");
}

/// Whether a tensor scales the FP8 weights of any dialect.
bool is_fp8_scale(const LintSubject& s, const TensorInfo& t) {
  for (const WeightDialect& d : weight_dialects()) {
    if (d.format != WeightFormat::kFp8 || !t.name.ends_with(d.scale) || !d.scale_types.has(t.dtype)) continue;
    const auto weight = s.find(t.name.substr(0, t.name.size() - std::string_view(d.scale).size()) + d.weight);
    if (weight && d.weight_types.has(s.tensors[*weight].dtype)) return true;
  }
  return false;
}

}  // namespace

TensorCounts& TensorCounts::operator+=(const TensorCounts& o) {
  wrong += o.wrong;
  first = std::min(first, o.first);
  negative += o.negative;
  first_negative = std::min(first_negative, o.first_negative);
  copies += o.copies;
  first_copy = std::min(first_copy, o.first_copy);
  padding += o.padding;
  first_padding = std::min(first_padding, o.first_padding);
  scales += o.scales;
  any = any || o.any;
  return *this;
}

TensorScan plan_tensor_scan(const LintSubject& s, size_t tensor) {
  const TensorInfo& t = s.tensors[tensor];
  if (!s.layout.empty()) {
    TensorScan part = plan_part(s, t);
    if (part.check != TensorCheck::kNone) return part;
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
  scan.fp8_scales = is_fp8_scale(s, t);
  return scan;
}

void scan_bytes(const TensorScan& scan, uint64_t offset, std::span<const uint8_t> bytes,
                TensorCounts& counts) {
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
      return count_all_ones<uint8_t>(offset, bytes, 0x7F, 0x7F, counts);
    case TensorCheck::kE8m0:
      return count_all_ones<uint8_t>(offset, bytes, 0xFF, 0xFF, counts);
    case TensorCheck::kBlockScales:
      return count_scales(bytes.data(), bytes.size(), offset, counts.scales);
    case TensorCheck::kMeta:
      return count_illegal_meta(offset, bytes, counts);
    case TensorCheck::kPacked:
      return scan_packed(scan.n, offset, bytes, counts);
    case TensorCheck::kPaddedScales:
      return scan_padded(scan, offset, bytes, counts);
  }
}

}  // namespace twofour
