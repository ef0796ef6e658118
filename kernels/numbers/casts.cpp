#include "kernels/numbers/casts.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "formats/atom.h"
#include "formats/e2m1.h"
#include "formats/e4m3.h"
#include "formats/e8m0.h"
#include "formats/half.h"
#include "kernels/device/check.h"
#include "kernels/numbers/quantize_ops.h"

namespace twofour {
namespace {

static_assert(std::endian::native == std::endian::little, "files are little-endian");

template <class ToFloat>
void widen_portably(const uint8_t* bytes, std::span<float> out, ToFloat to_float) {
  for (size_t i = 0; i < out.size(); ++i) {
    uint16_t half = 0;
    std::memcpy(&half, bytes + 2 * i, sizeof(half));
    out[i] = to_float(half);
  }
}

// MXFP4 scales
constexpr size_t kCodeBytes = 16;  // of a block
constexpr int kBias = 127;
constexpr int kLowest = -9, kHighest = 8;  // powers of two in E4M3

/// Tables of codes as E4M3, for each shift of a block.
struct ShiftedCodes {
  uint8_t bytes[Mxfp4Shift::kCount][16];      ///< bytes of E4M3
  unsigned rounded[Mxfp4Shift::kCount] = {};  ///< bit c: code c is rounded
  ShiftedCodes() {
    for (int i = 0; i < Mxfp4Shift::kCount; ++i) {
      for (unsigned code = 0; code < 16; ++code) {
        const float value = std::ldexp(e2m1_to_float(code), i + Mxfp4Shift::kLowest);
        bytes[i][code] = e4m3_from_float(value);
        if (e4m3_to_float(bytes[i][code]) != value) rounded[i] |= 1u << code;
      }
    }
  }
};

const ShiftedCodes& shifted_codes() {
  static const ShiftedCodes codes;
  return codes;
}

const std::array<float, 256>& e4m3_values() {
  static const auto values = [] {
    std::array<float, 256> all{};
    for (unsigned byte = 0; byte < all.size(); ++byte) all[byte] = e4m3_to_float(byte);
    return all;
  }();
  return values;
}

/// The largest of 16 E2M1 codes without their signs. Compares the bits of all magnitudes at once, beginning
/// with the highest bit. If any code has the bit, only codes with the bit remain.
unsigned largest_magnitude_code(uint64_t codes) {
  static_assert(sizeof(codes) * 2 == kGroup);
  unsigned largest = 0;
  for (int bit = 2; bit >= 0; --bit) {
    const uint64_t having = codes >> bit & 0x1111111111111111u;
    if (having == 0) continue;
    largest |= 1u << bit;
    codes &= having * 7;
  }
  return largest;
}

}  // namespace

void widen(DType type, const uint8_t* bytes, std::span<float> out, Isa isa) {
  const QuantizeOps* ops = quantize_ops(isa);
  const auto count = static_cast<int64_t>(out.size());
  size_t done = 0;
  switch (type) {
    case DType::kF32:
      if (count > 0) std::memcpy(out.data(), bytes, out.size_bytes());
      return;
    case DType::kBF16:
      if (ops != nullptr) done = static_cast<size_t>(ops->widen_bf16(bytes, count, out.data()));
      return widen_portably(bytes + 2 * done, out.subspan(done), bf16_to_float);
    case DType::kF16:
      if (ops != nullptr) done = static_cast<size_t>(ops->widen_f16(bytes, count, out.data()));
      return widen_portably(bytes + 2 * done, out.subspan(done), fp16_to_float);
    default:
      check(false, "F32, BF16 or F16");
  }
}

void round_to_bf16(std::span<const float> numbers, uint8_t* out, Isa isa) {
  const QuantizeOps* ops = quantize_ops(isa);
  const auto count = static_cast<int64_t>(numbers.size());
  const int64_t done = ops == nullptr ? 0 : ops->round_to_bf16(numbers.data(), count, out);
  for (auto i = static_cast<size_t>(done); i < numbers.size(); ++i) {
    const uint16_t half = bf16_from_float(numbers[i]);
    std::memcpy(out + 2 * i, &half, sizeof(half));
  }
}

void decode_int4(std::span<const uint8_t> codes, int64_t group, const float* zero_points, const float* scales,
                 float* out, Isa isa) {
  const QuantizeOps* ops = quantize_ops(isa);
  const auto count = static_cast<int64_t>(codes.size());
  const int64_t done =
      ops == nullptr ? 0 : ops->decode_int4(codes.data(), count, group, zero_points, scales, out);
  for (int64_t begin = done; begin < count; begin += group) {
    const float zero_point = zero_points[begin / group], scale = scales[begin / group];
    for (int64_t k = begin; k < std::min(begin + group, count); ++k) {
      out[k] = (static_cast<float>(codes[static_cast<size_t>(k)]) - zero_point) * scale;
    }
  }
}

float fp8_scale_of(float amax) {
  const float scale = amax / kE4m3Max;
  return scale == 0.0f ? 1.0f : scale;
}

void encode_fp8(std::span<const float> weights, float scale, uint8_t* out, Isa isa) {
  const QuantizeOps* ops = quantize_ops(isa);
  const auto count = static_cast<int64_t>(weights.size());
  const int64_t done = ops == nullptr ? 0 : ops->encode_fp8(weights.data(), count, scale, out);
  for (auto i = static_cast<size_t>(done); i < weights.size(); ++i) {
    const uint8_t byte = e4m3_from_float(weights[i] / scale);
    out[i] = e4m3_is_nan(byte) ? kE4m3Nan : byte;
  }
}

void decode_fp8(std::span<const uint8_t> bytes, float scale, float* out, Isa isa) {
  const QuantizeOps* ops = quantize_ops(isa);
  const auto count = static_cast<int64_t>(bytes.size());
  const int64_t done = ops == nullptr ? 0 : ops->decode_fp8(bytes.data(), count, scale, out);
  for (auto i = static_cast<size_t>(done); i < bytes.size(); ++i) out[i] = e4m3_to_float(bytes[i]) * scale;
}

void decode_nvfp4(std::span<const uint8_t> codes, std::span<const uint8_t> scales, float global, float* out,
                  Isa isa) {
  check(codes.size() * 2 == scales.size() * kGroup, "a scale for 16 numbers");
  const std::array<float, 256>& values = e4m3_values();
  const QuantizeOps* ops = quantize_ops(isa);
  constexpr size_t kAtOnce = 128;  // in the L1 cache
  for (size_t b = 0; b < scales.size(); b += kAtOnce) {
    const size_t count = std::min(kAtOnce, scales.size() - b);
    const uint8_t* own = &codes[b * kGroup / 2];
    float* to = out + b * kGroup;
    size_t done = 0;
    if (ops != nullptr) {
      done = static_cast<size_t>(
          ops->dequantize(values.data(), own, &scales[b], static_cast<int64_t>(count), to));
    }
    for (size_t i = done * kGroup; i < count * kGroup; ++i) {
      to[i] = e2m1_to_float(own[i / 2] >> i % 2 * 4 & 15u) * values[scales[b + i / kGroup]];
    }
    for (size_t i = 0; i < count * kGroup; ++i) to[i] *= global;
  }
}

float round_scale(DType type, float scale) {
  if (scale == 0) return 1;
  if (type == DType::kF32) return scale;
  if (type == DType::kBF16) {
    const float rounded = bf16_to_float(bf16_from_float(scale));
    return rounded == 0 ? 1 : rounded;
  }
  int exponent = 0;
  const float half = std::frexp(scale, &exponent);  // of a number in [0.5, 1)
  return std::ldexp(1.0f, std::max(half == 0.5f ? exponent - 1 : exponent, -kBias));
}

void store_scales(DType type, std::span<const float> scales, uint8_t* out) {
  if (type == DType::kF32) {
    if (!scales.empty()) std::memcpy(out, scales.data(), scales.size_bytes());
    return;
  }
  for (const float scale : scales) {
    if (type == DType::kBF16) {
      const uint16_t half = bf16_from_float(scale);
      std::memcpy(out, &half, sizeof(half));
      out += sizeof(half);
    } else {
      *out++ = e8m0_from_float(scale);
    }
  }
}

int64_t Mxfp4Range::add(std::span<const uint8_t> codes, std::span<const uint8_t> scales) {
  for (size_t b = 0; b < scales.size(); ++b) {
    if (scales[b] == kE8m0Nan) return static_cast<int64_t>(b);
    uint64_t half[2];
    static_assert(sizeof(half) == kCodeBytes);
    std::memcpy(half, &codes[b * kCodeBytes], kCodeBytes);
    if (((half[0] | half[1]) & 0x7777777777777777u) == 0) continue;
    low = std::min(low, scales[b] - kBias);
    high = std::max(high, scales[b] - kBias);
  }
  return -1;
}

int Mxfp4Range::exponent() const { return high < low ? 0 : std::clamp(high - kHighest, -126, 126); }

float mxfp4_tile_scale(DType type, const Mxfp4Range& tile) {
  constexpr int kSix = 6;  // 6 * 2^6 is the largest value of code 7 in E4M3
  if (tile.high < tile.low) return 1;
  const bool power = type == DType::kF8E8M0 || type == DType::kU8;
  return std::ldexp(1.0f, std::max(tile.high - kSix, power ? -kBias : 1 - kBias));
}

float largest_product(std::span<const uint8_t> codes, std::span<const uint8_t> scales) {
  const std::array<float, 256>& values = e4m3_values();
  float largest = 0;
  for (size_t b = 0; b < scales.size(); ++b) {
    uint64_t block = 0;
    std::memcpy(&block, &codes[b * sizeof(block)], sizeof(block));
    largest = std::max(largest, e2m1_to_float(largest_magnitude_code(block)) * values[scales[b]]);
  }
  return largest;
}

float nvfp4_tile_scale(DType type, float largest, float global) {
  if (largest == 0) return 1;
  int exponent = 0;
  const double half = std::frexp(double{largest} / double{kE4m3Max}, &exponent);
  if (half == 0.5) --exponent;
  const float scale = std::ldexp(global, exponent);
  const bool has_it = std::isnormal(scale) && std::ldexp(scale, -exponent) == global;
  return has_it && round_scale(type, scale) == scale ? scale : 0;
}

void mxfp4_shifts(std::span<const uint8_t> scales, float fp8_scale, uint8_t* shifts) {
  const int lowest = std::ilogb(fp8_scale) + kBias + Mxfp4Shift::kLowest;
  for (size_t b = 0; b < scales.size(); ++b) {
    shifts[b] = static_cast<uint8_t>(std::clamp(scales[b] - lowest, 0, Mxfp4Shift::kCount - 1));
  }
}

void cast_mxfp4_codes(std::span<const uint8_t> codes, const uint8_t* shifts, uint8_t* out, Isa isa) {
  const ShiftedCodes& shifted = shifted_codes();
  const size_t blocks = codes.size() / kCodeBytes;
  const QuantizeOps* ops = quantize_ops(isa);
  size_t done = 0;
  if (ops != nullptr) {
    done = static_cast<size_t>(
        ops->look_up_codes(shifted.bytes[0], codes.data(), shifts, static_cast<int64_t>(blocks), out));
  }
  for (size_t b = done; b < blocks; ++b) {
    const uint8_t* table = shifted.bytes[shifts[b]];
    for (size_t j = b * kCodeBytes; j < (b + 1) * kCodeBytes; ++j) {
      out[2 * j] = table[codes[j] & 15u];
      out[2 * j + 1] = table[codes[j] >> 4];
    }
  }
}

bool is_exact_cast(std::span<const uint8_t> codes, const uint8_t* shifts) {
  const ShiftedCodes& shifted = shifted_codes();
  for (size_t b = 0; b < codes.size() / kCodeBytes; ++b) {
    if (shifts[b] >= Mxfp4Shift::byte_of(Mxfp4Shift::kExact)) continue;
    unsigned found = 0;
    for (const uint8_t byte : codes.subspan(b * kCodeBytes, kCodeBytes)) {
      found |= 1u << (byte & 15u) | 1u << (byte >> 4);
    }
    if ((found & shifted.rounded[shifts[b]]) != 0) return false;
  }
  return true;
}

void cast_mxfp4_scales(std::span<const uint8_t> scales, int exponent, uint8_t* out) {
  std::array<uint8_t, 256> bytes{};
  for (int scale = 0; scale < 256; ++scale) {
    const int power = std::clamp(scale - kBias - exponent, kLowest, kHighest);
    bytes[static_cast<size_t>(scale)] = e4m3_from_float(std::ldexp(1.0f, power));
  }
  for (const uint8_t scale : scales) {
    out[0] = out[1] = bytes[scale];
    out += 2;
  }
}

namespace {

/// Tables of codes after the scale of their block was raised by powers of two.
struct RaisedCodes {
  static constexpr int kMost = 6;  ///< from here on, every code is zero
  uint8_t codes[kMost + 1][16];
  uint16_t rounded[kMost + 1];  ///< bit c: code c becomes another value

  RaisedCodes() {
    for (int raise = 0; raise <= kMost; ++raise) {
      rounded[raise] = 0;
      for (unsigned code = 0; code < 16; ++code) {
        const float value = std::ldexp(e2m1_to_float(code), -raise);
        const unsigned nearest = e2m1_from_float(value);
        codes[raise][code] = static_cast<uint8_t>(nearest);
        if (e2m1_to_float(nearest) != value) rounded[raise] |= static_cast<uint16_t>(1u << code);
      }
    }
  }
};

}  // namespace

int64_t round_small_mxfp4_blocks(std::span<const uint8_t> scales, int exponent, uint8_t* codes) {
  static const RaisedCodes raised;
  const int least = exponent + kLowest + kBias;
  int64_t count = 0;
  for (size_t b = 0; b < scales.size(); ++b) {
    if (scales[b] >= least) continue;
    const int raise = std::min(least - scales[b], RaisedCodes::kMost);
    unsigned found = 0;
    for (size_t i = b * kCodeBytes; i < (b + 1) * kCodeBytes; ++i) {
      const unsigned low = codes[i] & 15u, high = codes[i] >> 4;
      found |= 1u << low | 1u << high;
      codes[i] = static_cast<uint8_t>(raised.codes[raise][low] | raised.codes[raise][high] << 4);
    }
    count += (found & raised.rounded[raise]) != 0;
  }
  return count;
}

}  // namespace twofour
