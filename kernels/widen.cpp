#include "kernels/widen.h"

#include <bit>
#include <cstring>

#include "formats/half.h"
#include "kernels/device/check.h"
#include "kernels/quantize_isa.h"

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

}  // namespace twofour
