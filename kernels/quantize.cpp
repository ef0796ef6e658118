#include "kernels/quantize.h"

#include <algorithm>
#include <bit>

#include "formats/e2m1.h"
#include "formats/e4m3.h"
#include "kernels/check.h"

namespace twofour {
namespace {

// Magnitudes sort as their bits do, and NaN above all, so that a NaN weight reaches the scale.
float largest_magnitude(const float* x) {
  int32_t largest = 0;
#pragma omp simd reduction(max : largest)
  for (int i = 0; i < kGroup; ++i) largest = std::max(largest, std::bit_cast<int32_t>(x[i]) & 0x7FFFFFFF);
  return std::bit_cast<float>(largest);
}

uint8_t block_scale(float amax, float global_scale) {
  float scale = amax / (kE2m1Max * global_scale);
  // ModelOpt asks the quotient, not the block, whether it is zero.
  if (scale == 0.0f) scale = 1.0f;
  if (scale < 0x1p-9f) scale = 0x1p-9f;
  if (scale > kE4m3Max) scale = kE4m3Max;
  return e4m3_from_float(scale);
}

}  // namespace

void quantize_nvfp4_row(const float* row, int64_t k, float global_scale, uint8_t* codes, uint8_t* scales) {
  check(k >= 0 && k % kGroup == 0, "K a multiple of 16");
  for (int64_t group = 0; group < k / kGroup; ++group) {
    const float* x = row + group * kGroup;
    const uint8_t scale = block_scale(largest_magnitude(x), global_scale);
    const float divisor = e4m3_to_float(scale) * global_scale;
    unsigned code[kGroup];
    // + 0 takes the sign from -0 alone: ModelOpt's sign is that of x < 0, so a tiny negative keeps it.
#pragma omp simd
    for (int i = 0; i < kGroup; ++i) code[i] = e2m1_from_float((x[i] + 0.0f) / divisor);
    for (int j = 0; j < kGroup / 2; ++j) {
      codes[group * 8 + j] = static_cast<uint8_t>(code[2 * j] | code[2 * j + 1] << 4);
    }
    scales[group] = scale;
  }
}

}  // namespace twofour
