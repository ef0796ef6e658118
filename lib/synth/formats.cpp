#include "lib/synth/formats.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "formats/atom.h"
#include "formats/e2m1.h"
#include "formats/e4m3.h"
#include "formats/e8m0.h"
#include "formats/error.h"
#include "formats/half.h"
#include "formats/module_names.h"
#include "formats/weight_dialect.h"
#include "kernels/device/check.h"
#include "kernels/numbers/casts.h"
#include "kernels/numbers/quantize.h"

namespace twofour {
namespace {

using enum SynthEncoding;
using enum SynthCodes;
using enum SynthPart;
using enum DType;

/// The largest value of NVFP4 with a global scale of 1, which is the largest code times the largest block
/// scale.
constexpr float kNvfp4Most = kE2m1Max * kE4m3Max;
constexpr QuantizeRule kFourOverSix{Arithmetic::modelopt, BlockScale::four_over_six, ZeroBlock::producer,
                                    kF32};

bool is_transposed(const SynthFormat& f) { return f.codes == kAwq || f.codes == kGptq; }
int64_t tile_rows(const SynthMatrix& m, const SynthFormat& f) { return f.rows > 0 ? f.rows : m.rows(); }
int64_t tile_columns(const SynthMatrix& m, const SynthFormat& f) { return f.columns > 0 ? f.columns : m.k; }
int64_t tiles(int64_t n, int64_t tile) { return (n + tile - 1) / tile; }
bool has_single_scale(const SynthFormat& f) { return f.rows == 0 && f.columns == 0; }

/// Puts the number of experts in front of a shape if the matrix is a stack.
std::vector<int64_t> stacked(const SynthMatrix& m, std::vector<int64_t> shape) {
  if (m.e > 0) shape.insert(shape.begin(), m.e);
  return shape;
}

std::vector<int64_t> codes_shape(const SynthMatrix& m, SynthCodes codes) {
  switch (codes) {
    case kBytes:
      return {m.n, m.k};
    case kNibbles:
      return {m.n, m.k / 2};
    case kBlocks:
      return {m.n, m.k / kMxGroup, kMxGroup / 2};
    case kPacked:
      return {m.n, m.k / 8};
    case kAwq:
      return {m.k, m.n / 8};
    case kGptq:
      return {m.k / 8, m.n};
  }
  return {};
}

std::vector<int64_t> scales_shape(const SynthMatrix& m, const SynthFormat& f) {
  if (has_single_scale(f)) return std::vector<int64_t>(f.scalar_rank, 1);
  const int64_t n = tiles(m.n, f.rows > 0 ? f.rows : m.n), k = tiles(m.k, tile_columns(m, f));
  return is_transposed(f) ? std::vector{k, n} : stacked(m, {n, k});
}

std::string parent(const std::string& name) { return std::string(module_of(name)); }

template <class T>
void append(std::vector<uint8_t>& bytes, T value) {
  const auto raw = std::bit_cast<std::array<uint8_t, sizeof(T)>>(value);
  bytes.insert(bytes.end(), raw.begin(), raw.end());
}

/// Rounds a scale to `type`, which may also be F16.
float stored_scale(DType type, float scale) {
  return type == kF16 ? fp16_to_float(fp16_from_float(scale)) : round_scale(type, scale);
}

void append_scale(std::vector<uint8_t>& bytes, DType type, float scale) {
  switch (type) {
    case kF32:
      return append(bytes, scale);
    case kBF16:
      return append(bytes, bf16_from_float(scale));
    case kF16:
      return append(bytes, fp16_from_float(scale));
    default:
      bytes.push_back(e8m0_from_float(scale));
  }
}

/// The stored value of code 1 in a tile whose largest magnitude is `amax`.
float tile_scale(const SynthFormat& f, float amax) {
  switch (f.encoding) {
    case kFp8:
      return stored_scale(f.powers_of_two ? kF8E8M0 : f.scale_type, fp8_scale_of(amax));
    case kMxfp8:
      return round_scale(kF8E8M0, amax / kE4m3Max);
    case kMxfp4:
      return round_scale(kF8E8M0, amax / kE2m1Max);
    default:
      return stored_scale(f.scale_type, amax > 0 ? amax / 7.0f : 1.0f);
  }
}

struct Tiles {
  std::vector<float> scales;    ///< [rows / tile, columns / tile]
  std::vector<unsigned> zeros;  ///< for kUint4
};

/// Chooses the scales of the tiles of `weights` [rows, k].
Tiles choose_scales(const SynthMatrix& m, const SynthFormat& f, std::span<const float> weights, float amax) {
  Tiles out;
  const int64_t rows = static_cast<int64_t>(weights.size()) / m.k, height = std::min(tile_rows(m, f), rows),
                width = tile_columns(m, f);
  for (int64_t row = 0; row < rows; row += height) {
    for (int64_t column = 0; column < m.k; column += width) {
      float most = has_single_scale(f) ? amax : 0, low = 0, high = 0;
      for (int64_t r = row; r < std::min(rows, row + height) && !has_single_scale(f); ++r) {
        for (int64_t c = column; c < std::min(m.k, column + width); ++c) {
          const float w = weights[static_cast<size_t>(r * m.k + c)];
          most = std::max(most, std::fabs(w)), low = std::min(low, w), high = std::max(high, w);
        }
      }
      if (f.encoding == kUint4) {
        const float range = high - low, scale = stored_scale(f.scale_type, range > 0 ? range / 15.0f : 1.0f);
        out.scales.push_back(scale);
        out.zeros.push_back(static_cast<unsigned>(std::clamp(std::nearbyintf(-low / scale), 0.0f, 15.0f)));
      } else {
        out.scales.push_back(tile_scale(f, most));
      }
    }
  }
  return out;
}

/// The code of a weight, which has 4 or 8 bits. INT4 is stored with 8 added.
unsigned encode_weight(const SynthFormat& f, float weight, float scale, unsigned zero) {
  const float x = weight / scale;
  switch (f.encoding) {
    case kMxfp4:
      return e2m1_from_float(x);
    case kInt4:
      return static_cast<unsigned>(std::clamp(std::nearbyintf(x), -8.0f, 7.0f) + 8.0f);
    case kUint4:
      return static_cast<unsigned>(std::clamp(std::nearbyintf(x) + static_cast<float>(zero), 0.0f, 15.0f));
    default:
      return e4m3_from_float(x);
  }
}

/// Packs codes of 4 bits, two in a byte. The first code is in the low half.
std::vector<uint8_t> pack_nibbles(const std::vector<uint8_t>& codes) {
  std::vector<uint8_t> bytes(codes.size() / 2);
  for (size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<uint8_t>(codes[2 * i] | codes[2 * i + 1] << 4);
  return bytes;
}

/// Transposes codes [n, k] to [k, n] and packs eight codes into a 32-bit word. For AWQ, these are eight codes
/// along n in AWQ's order. For GPTQ, they are eight codes along k in plain order.
std::vector<uint8_t> pack_transposed(const std::vector<uint8_t>& codes, int64_t n, int64_t k,
                                     SynthCodes how) {
  constexpr std::array<int64_t, 8> kAwqOrder = {0, 2, 4, 6, 1, 3, 5, 7};
  std::vector<uint8_t> out;
  out.reserve(codes.size());
  const auto code = [&](int64_t row, int64_t column) { return codes[static_cast<size_t>(row * k + column)]; };
  if (how == kAwq) {
    for (int64_t c = 0; c < k; ++c) {
      for (int64_t r = 0; r < n; r += 8) {
        for (const int64_t i : kAwqOrder) out.push_back(code(r + i, c));
      }
    }
  } else {
    for (int64_t c = 0; c < k; c += 8) {
      for (int64_t r = 0; r < n; ++r) {
        for (int64_t i = 0; i < 8; ++i) out.push_back(code(r, c + i));
      }
    }
  }
  return pack_nibbles(out);
}

std::vector<SynthBytes> encode_nvfp4(const SynthMatrix& m, const SynthFormat& f, int64_t row,
                                     std::span<const float> weights, float amax) {
  std::vector<uint8_t> codes(weights.size() / 2), scales(weights.size() / kGroup);
  if (f.encoding == kNvfp4FourOverSix) {
    quantize_nvfp4(kFourOverSix, global_scale_of(kFourOverSix, amax), weights, codes.data(), scales.data());
  } else {
    for (size_t at = 0; at < weights.size(); at += static_cast<size_t>(m.k)) {
      quantize_nvfp4_row(weights.data() + at, m.k, amax / kNvfp4Most, codes.data() + at / 2,
                         scales.data() + at / kGroup);
    }
  }
  const auto before = static_cast<uint64_t>(row * m.k);
  return {{kCodes, before / 2, std::move(codes)}, {kScales, before / kGroup, std::move(scales)}};
}

/// Packs zero points to [K/g, N/8], where g is the group size, like the codes. GPTQ's first format stores
/// each zero point minus one.
std::vector<uint8_t> pack_zeros(const SynthMatrix& m, const SynthFormat& f, const Tiles& tiles_of) {
  const int64_t groups = m.k / f.columns;
  std::vector<uint8_t> zeros(static_cast<size_t>(m.n * groups));
  for (int64_t r = 0; r < m.n; ++r) {
    for (int64_t g = 0; g < groups; ++g) {
      const auto i = static_cast<size_t>(r * groups + g);
      zeros[i] = f.codes == kGptq ? uint8_t{7} : static_cast<uint8_t>(tiles_of.zeros[i]);
    }
  }
  // Zero points are packed along N in both formats, in AWQ's order of columns or, for GPTQ, in plain order.
  if (f.codes == kAwq) return pack_transposed(zeros, m.n, groups, kAwq);
  std::vector<uint8_t> rows;
  for (int64_t g = 0; g < groups; ++g) {
    for (int64_t r = 0; r < m.n; ++r) rows.push_back(zeros[static_cast<size_t>(r * groups + g)]);
  }
  return pack_nibbles(rows);
}

}  // namespace

std::vector<SynthTensor> quantized_tensors(const SynthMatrix& m, const SynthFormat& f) {
  const int64_t divisor = f.codes == kBytes ? 1 : f.columns > 1 ? f.columns : 8;
  if (m.k % divisor != 0 || (is_transposed(f) && m.n % 8 != 0)) {
    throw Error(fmt::format("synth: {}: expected K to be a multiple of {}, found [{}, {}]", m.name, divisor,
                            m.n, m.k));
  }
  std::vector<SynthTensor> tensors;
  const auto add = [&](const std::string& name, DType type, std::vector<int64_t> shape, SynthPart part) {
    tensors.push_back({{name, type, std::move(shape)}, part});
  };
  const std::vector<int64_t> scalar(f.scalar_rank, 1);
  add(m.name + f.weight, f.weight_type, stacked(m, codes_shape(m, f.codes)), kCodes);
  add((f.shared ? parent(m.name) : m.name) + f.scale, f.scale_type, scales_shape(m, f), kScales);
  if (f.global != nullptr) add(m.name + f.global, kF32, scalar, kGlobal);
  if (f.input != nullptr) add(m.name + f.input, kF32, scalar, kInputScale);
  if (f.codes == kPacked) add(m.name + ".weight_shape", kI64, {2}, kShape);
  if (is_transposed(f)) add(m.name + ".qzeros", kI32, {m.k / f.columns, m.n / 8}, kZeros);
  if (f.codes == kGptq) add(m.name + ".g_idx", kI32, {m.k}, kGroups);
  return tensors;
}

bool needs_amax(const SynthFormat& f) {
  return f.encoding == kNvfp4 || f.encoding == kNvfp4FourOverSix || has_single_scale(f);
}

int64_t strip_rows(const SynthFormat& f) { return is_transposed(f) ? 0 : std::max<int64_t>(f.rows, 1); }

std::vector<SynthBytes> encode_rows(const SynthMatrix& m, const SynthFormat& f, int64_t row,
                                    std::span<const float> weights, float amax) {
  if (f.encoding == kNvfp4 || f.encoding == kNvfp4FourOverSix) return encode_nvfp4(m, f, row, weights, amax);
  const int64_t rows = static_cast<int64_t>(weights.size()) / m.k, width = tile_columns(m, f),
                height = std::min(tile_rows(m, f), rows), across = tiles(m.k, width);
  check(is_transposed(f) ? rows == m.n : row % strip_rows(f) == 0, "strips of whole tiles");
  const Tiles of = choose_scales(m, f, weights, amax);
  std::vector<uint8_t> codes(weights.size());
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < m.k; ++c) {
      const auto i = static_cast<size_t>(r * m.k + c),
                 t = static_cast<size_t>(r / height * across + c / width);
      codes[i] = static_cast<uint8_t>(
          encode_weight(f, weights[i], of.scales[t], of.zeros.empty() ? 0u : of.zeros[t]));
    }
  }
  std::vector<SynthBytes> out;
  const auto before = static_cast<uint64_t>(row * m.k);
  if (is_transposed(f)) {
    out.push_back({kCodes, 0, pack_transposed(codes, m.n, m.k, f.codes)});
    out.push_back({kZeros, 0, pack_zeros(m, f, of)});
  } else if (f.codes == kBytes) {
    out.push_back({kCodes, before, std::move(codes)});
  } else {
    out.push_back({kCodes, before / 2, pack_nibbles(codes)});
  }
  if (has_single_scale(f)) return out;
  std::vector<uint8_t> scales;
  for (int64_t i = 0; i < static_cast<int64_t>(of.scales.size()); ++i) {
    // Transposed scales are [K/g, N].
    const int64_t at = is_transposed(f) ? i % m.n * across + i / m.n : i;
    append_scale(scales, f.scale_type, of.scales[static_cast<size_t>(at)]);
  }
  const uint64_t first =
      static_cast<uint64_t>(row / tile_rows(m, f) * across) * (scales.size() / of.scales.size());
  out.push_back({kScales, first, std::move(scales)});
  return out;
}

std::vector<SynthBytes> encode_single(const SynthMatrix& m, const SynthFormat& f, float amax, float input) {
  std::vector<SynthBytes> out;
  const auto add = [&](SynthPart part, DType type, float multiplier) {
    std::vector<uint8_t> bytes;
    append_scale(bytes, type, f.divides ? 1.0f / multiplier : multiplier);
    out.push_back({part, 0, std::move(bytes)});
  };
  if (has_single_scale(f)) add(kScales, f.scale_type, tile_scale(f, amax));
  if (f.global != nullptr) {
    add(kGlobal, kF32,
        f.encoding == kNvfp4FourOverSix ? global_scale_of(kFourOverSix, amax).stored : amax / kNvfp4Most);
  }
  if (f.input != nullptr) add(kInputScale, kF32, input / (f.encoding == kFp8 ? kE4m3Max : kNvfp4Most));
  std::vector<uint8_t> bytes;
  if (f.codes == kPacked) {
    append(bytes, m.n), append(bytes, m.k);
    out.push_back({kShape, 0, bytes});
  }
  if (f.codes == kGptq) {
    for (int64_t i = 0; i < m.k; ++i) append(bytes, static_cast<int32_t>(i / f.columns));
    out.push_back({kGroups, 0, bytes});
  }
  return out;
}

}  // namespace twofour
