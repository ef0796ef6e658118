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

// Of MXFP4 scales
constexpr size_t kCodeBytes = 16;  // of a block
constexpr int kBias = 127;
constexpr int kLowest = -9, kHighest = 8;  // powers of two in E4M3

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
    unsigned any = 0;
    for (size_t j = 0; j < kCodeBytes; ++j) any |= codes[b * kCodeBytes + j];
    if ((any & 0x77u) == 0) continue;
    low = std::min(low, scales[b] - kBias);
    high = std::max(high, scales[b] - kBias);
  }
  return -1;
}

int Mxfp4Range::exponent() const { return high < low ? 0 : std::clamp(high - kHighest, -126, 126); }

float mxfp4_tile_scale(DType type, const Mxfp4Range& tile) {
  constexpr int kSix = 6;  // 6 * 2^6 is the largest of code 7 that E4M3 has
  if (tile.high < tile.low) return 1;
  const bool power = type == DType::kF8E8M0 || type == DType::kU8;
  return std::ldexp(1.0f, std::max(tile.high - kSix, power ? -kBias : 1 - kBias));
}

float largest_product(std::span<const uint8_t> codes, std::span<const uint8_t> scales) {
  constexpr size_t kBytes = kGroup / 2;
  float largest = 0;
  for (size_t b = 0; b < scales.size(); ++b) {
    unsigned most = 0;
    for (size_t j = 0; j < kBytes; ++j) {
      const unsigned byte = codes[b * kBytes + j];
      most = std::max({most, byte & 7u, byte >> 4 & 7u});
    }
    largest = std::max(largest, e2m1_to_float(most) * e4m3_to_float(scales[b]));
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

void cast_mxfp4_codes(std::span<const uint8_t> codes, uint8_t* out) {
  static const auto table = [] {
    std::array<std::array<uint8_t, 2>, 256> pairs{};
    for (unsigned byte = 0; byte < pairs.size(); ++byte) {
      pairs[byte] = {e4m3_from_float(e2m1_to_float(byte & 15u)), e4m3_from_float(e2m1_to_float(byte >> 4))};
    }
    return pairs;
  }();
  for (const uint8_t byte : codes) {
    std::memcpy(out, table[byte].data(), 2);
    out += 2;
  }
}

void cast_mxfp4_scales(std::span<const uint8_t> scales, int exponent, uint8_t* out) {
  for (const uint8_t scale : scales) {
    const int power = std::clamp(scale - kBias - exponent, kLowest, kHighest);
    out[0] = out[1] = e4m3_from_float(std::ldexp(1.0f, power));
    out += 2;
  }
}

}  // namespace twofour
