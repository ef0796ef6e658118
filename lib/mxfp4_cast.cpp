#include "kernels/numbers/casts.h"

#include <algorithm>
#include <cmath>

#include "formats/e4m3.h"
#include "formats/e8m0.h"

namespace twofour {
namespace {

constexpr size_t kCodeBytes = 16;  // of a block
constexpr int kBias = 127;
constexpr int kLowest = -9, kHighest = 8;  // powers of two in E4M3

}  // namespace

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

void cast_mxfp4_scales(std::span<const uint8_t> scales, int exponent, uint8_t* out) {
  for (const uint8_t scale : scales) {
    const int power = std::clamp(scale - kBias - exponent, kLowest, kHighest);
    out[0] = out[1] = e4m3_from_float(std::ldexp(1.0f, power));
    out += 2;
  }
}

}  // namespace twofour
