#include "kernels/fp8.h"

#include <array>

#include "formats/e4m3.h"
#include "kernels/quantize_isa.h"

namespace twofour {

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

}  // namespace twofour
