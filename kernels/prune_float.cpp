#include "kernels/prune_float.h"

#include <bit>
#include <cstdint>

#include "kernels/device/check.h"
#include "kernels/quantize_isa.h"

namespace twofour {

void prune_2_4(std::span<float> weights, Isa isa) {
  check(weights.size() % 4 == 0, "K a multiple of 4");
  const QuantizeOps* ops = quantize_ops(isa);
  const auto count = static_cast<int64_t>(weights.size());
  const int64_t done = ops == nullptr ? 0 : ops->prune_2_4(weights.data(), count);
  for (float* x = weights.data() + done; x != weights.data() + count; x += 4) {
    int32_t size[4];  // magnitudes sort as their bits do
    for (int i = 0; i < 4; ++i) size[i] = std::bit_cast<int32_t>(x[i]) & 0x7FFFFFFF;
    for (int i = 0; i < 4; ++i) {
      int stronger = 0;
      for (int j = 0; j < 4; ++j) stronger += j < i ? size[j] >= size[i] : size[j] > size[i];
      if (stronger >= 2) x[i] = 0.0f;
    }
  }
}

}  // namespace twofour
