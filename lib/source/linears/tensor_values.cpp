#include "lib/source/linears/tensor_values.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <vector>

#include "formats/atom.h"
#include "formats/e2m1.h"
#include "formats/e4m3.h"
#include "formats/e8m0.h"
#include "formats/error.h"
#include "formats/half.h"
#include "kernels/numbers/casts.h"
#include "lib/source/linears/linears.h"

namespace twofour {
namespace {

/// The widest type of T's kind: floating-point, signed or unsigned.
template <class T>
using Widest = std::conditional_t<std::is_floating_point_v<T>, double,
                                  std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>>;

}  // namespace

bool has_float_values(DType dtype) {
  return is_float(dtype) || dtype == DType::kF8E4M3 || dtype == DType::kF8E8M0;
}

void to_floats(DType dtype, const uint8_t* bytes, std::span<float> out) {
  if (dtype == DType::kF8E4M3) {
    std::transform(bytes, bytes + out.size(), out.begin(), [](uint8_t b) { return e4m3_to_float(b); });
  } else if (dtype == DType::kF8E8M0) {
    std::transform(bytes, bytes + out.size(), out.begin(), [](uint8_t b) { return e8m0_to_float(b); });
  } else {
    widen(dtype, bytes, out);
  }
}

int64_t element_bytes(DType dtype) {
  const int bits = dtype_bits(dtype);
  return bits % 8 == 0 ? bits / 8 : 1;
}

ElementValue element_value(DType dtype, const uint8_t* bytes) {
  if (has_float_values(dtype)) {
    float value = 0;
    to_floats(dtype, bytes, {&value, 1});
    return double{value};
  }
  ElementValue value;
  const bool is_number = with_number_type(dtype, [&]<class T>() {
    T stored;
    std::memcpy(&stored, bytes, sizeof(stored));
    value = Widest<T>{stored};
  });
  if (is_number) return value;
  uint64_t number = 0;
  std::memcpy(&number, bytes, static_cast<size_t>(element_bytes(dtype)));
  return number;
}

double element_number(DType dtype, const uint8_t* bytes) {
  return std::visit([](auto value) { return static_cast<double>(value); }, element_value(dtype, bytes));
}

namespace {

constexpr uint64_t kPiece = 1u << 20;

/// Calls `f(index, value)` for each integer of a tensor until `f` returns false. Returns false if `f` did, or
/// if the tensor holds no integers.
bool for_integers(const TensorInfo& t, const ReadBytes& read,
                  const std::function<bool(int64_t, int64_t)>& f) {
  const uint64_t width = static_cast<uint64_t>(dtype_bits(t.dtype)) / 8;
  const bool is_signed =
      t.dtype == DType::kI8 || t.dtype == DType::kI16 || t.dtype == DType::kI32 || t.dtype == DType::kI64;
  const bool is_unsigned =
      t.dtype == DType::kU8 || t.dtype == DType::kU16 || t.dtype == DType::kU32 || t.dtype == DType::kU64;
  if (!is_signed && !is_unsigned) return false;
  std::vector<uint8_t> bytes(std::min(kPiece, t.bytes()));
  for (uint64_t at = 0; at < t.bytes(); at += kPiece) {
    const std::span<uint8_t> some(bytes.data(), std::min(kPiece, t.bytes() - at));
    read(at, some);
    for (uint64_t i = 0; i < some.size(); i += width) {
      uint64_t value = 0;
      for (uint64_t b = 0; b < width; ++b) value |= uint64_t{some[i + b]} << (8 * b);
      const uint64_t sign = uint64_t{1} << (8 * width - 1);
      if (is_signed) value = (value ^ sign) - sign;
      if (!f(static_cast<int64_t>((at + i) / width), static_cast<int64_t>(value))) return false;
    }
  }
  return true;
}

}  // namespace

std::vector<int64_t> read_few_integers(const TensorInfo& t, const ReadBytes& read) {
  constexpr uint64_t kMost = 64;  // bytes
  std::vector<int64_t> values;
  if (t.bytes() > kMost) return values;
  for_integers(t, read, [&](int64_t, int64_t value) { return values.push_back(value), true; });
  return values;
}

bool is_all_zero(const TensorInfo& t, const ReadBytes& read) {
  const uint64_t width = std::max<uint64_t>(1, static_cast<uint64_t>(dtype_bits(t.dtype)) / 8);
  const bool is_float = t.dtype == DType::kF64 || t.dtype == DType::kF32 || t.dtype == DType::kBF16 ||
                        t.dtype == DType::kF16 || t.dtype == DType::kF8E4M3 || t.dtype == DType::kF8E5M2;
  std::vector<uint8_t> bytes(std::min(kPiece, t.bytes()));
  for (uint64_t at = 0; at < t.bytes(); at += kPiece) {
    const std::span<uint8_t> some(bytes.data(), std::min(kPiece, t.bytes() - at));
    read(at, some);
    for (uint64_t i = 0; i < some.size(); ++i) {
      const bool has_sign = is_float && i % width == width - 1;
      if ((some[i] & (has_sign ? 0x7F : 0xFF)) != 0) return false;
    }
  }
  return true;
}

bool is_in_order(const TensorInfo& t, const ReadBytes& read) {
  const int64_t k = t.shape.empty() ? 1 : t.shape.back();
  // All groups must have the size of the first group.
  int64_t size = k;
  bool unset = true, in_order = true;
  const bool integers = for_integers(t, read, [&](int64_t index, int64_t value) {
    const int64_t i = index % k;
    unset = unset && value == -1;
    if (index < k && size == k && value == 1) size = i;
    in_order = in_order && value >= 0 && size > 0 && value == i / size;
    return unset || in_order;
  });
  return integers && (unset || (in_order && k % size == 0));
}

namespace {

/// The codes and block scales of one expert, in rows. Each row of scales, `width` bytes, has `depth` rows of
/// codes, of `width` bytes each, or `depth` bytes of codes for each of its bytes.
struct ScaledCodes {
  size_t codes, scales;
  uint64_t first, rows;
  size_t width, depth;
  bool k_outer;
};

/// Returns the largest product of a code and its block scale.
float largest_scaled_code(const Checkpoint& c, const ScaledCodes& from) {
  std::vector<uint8_t> scales(from.width), codes(from.depth * from.width);
  float largest = 0;
  for (uint64_t row = from.first; row < from.first + from.rows; ++row) {
    const uint64_t at = row * from.width;
    c.read(from.scales, at, scales);
    c.read(from.codes, from.depth * at, codes);
    for (size_t i = 0; i < codes.size(); ++i) {
      const uint8_t scale = scales[from.k_outer ? i % from.width : i / from.depth];
      const int code = std::max(codes[i] & 7, codes[i] >> 4 & 7);
      if (e4m3_is_block_scale(scale))
        largest = std::max(largest, e2m1_to_float(static_cast<unsigned>(code)) * e4m3_to_float(scale));
    }
  }
  return largest;
}

/// Returns why weights with a global scale are impossible, without the place; empty: they are possible. A
/// scale that is computed from weights is no reciprocal.
std::string refusal_of(const Checkpoint& c, float stored, float multiplier, const ScaledCodes& from,
                       bool is_computed = false) {
  if (!std::isfinite(stored) || stored <= 0 || !std::isfinite(multiplier) || multiplier <= 0)
    return fmt::format("expected a positive finite global scale, found {}", stored);
  if (!is_beyond_weights(multiplier)) return "";
  const float largest = largest_scaled_code(c, from);
  if (!(largest * multiplier < kBeyondBf16))
    return fmt::format("expected a global scale with which all weights are finite, found {}", stored);
  const bool is_reciprocal = !is_computed && kNvfp4Range / multiplier >= kSmallestWeight;
  if (!is_reciprocal || largest * multiplier <= kLargestWeight) return "";
  return fmt::format(
      "expected a global scale of weights up to {:g}, found {}, with which they are up to {:.3g}, and with "
      "its "
      "reciprocal up to {:.3g}: twofour repair stores the reciprocal where the other scales agree",
      kLargestWeight, stored, largest * multiplier, largest / multiplier);
}

}  // namespace

SourceScale read_global_scale(const Checkpoint& c, const Nvfp4Linear& m, int64_t expert, Problems& problems) {
  const uint64_t count = c.tensors()[m.global_scale].bytes() / sizeof(float);
  uint8_t bytes[sizeof(float)];
  c.read(m.global_scale, count == 1 ? 0 : static_cast<uint64_t>(expert) * sizeof(float), bytes);
  float stored = 0;
  std::memcpy(&stored, bytes, sizeof(stored));
  const float own = global_scale_multiplier(*m.dialect, stored);
  const auto rows = static_cast<uint64_t>(m.k_outer ? m.k / kGroup : m.n);
  const std::string refusal =
      refusal_of(c, stored, own,
                 {m.codes, m.block_scale, static_cast<uint64_t>(expert) * rows, rows,
                  static_cast<size_t>(m.k_outer ? m.n : m.k / kGroup), kGroup / 2, m.k_outer},
                 c.is_computed(m));
  if (!refusal.empty()) problems.add("{}: {}", c.where(m.global_scale), refusal);
  return {std::bit_cast<uint32_t>(stored), own};
}

float read_multiplier(const Checkpoint& c, const Linear& m, int64_t e) {
  if (m.nvfp4) {
    Problems problems;
    const float multiplier = read_global_scale(c, c.nvfp4_modules()[*m.nvfp4], e, problems).multiplier;
    problems.refuse();
    return multiplier;
  }
  uint8_t bytes[sizeof(float)];
  c.read(*m.global_scale, 0, bytes);
  float scale = 0;
  std::memcpy(&scale, bytes, sizeof(scale));
  const auto rows = static_cast<uint64_t>(m.n);
  const std::string refusal =
      refusal_of(c, scale, scale,
                 {m.weight, *m.scale, static_cast<uint64_t>(e) * rows, rows,
                  static_cast<size_t>(m.k / m.scale_cols), static_cast<size_t>(m.scale_cols / 2), false});
  if (!refusal.empty()) throw Error(fmt::format("{}: {}", c.where(*m.global_scale), refusal));
  return scale;
}

}  // namespace twofour
