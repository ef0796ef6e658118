#pragma once
#include <cmath>
#include <cstdint>
#include <random>

#include "formats/atom.h"
#include "formats/e2m1.h"
#include "formats/e4m3.h"

/// Random scales of NVFP4 experts, and what their weights stand for.

namespace twofour {

/// Mostly as models have them; zero, the smallest and the largest too.
inline uint8_t random_block_scale(std::mt19937& random) {
  const auto r = static_cast<unsigned>(random());
  return static_cast<uint8_t>(r % 64 == 0 ? (r >> 8) % 0x7F : 0x28 + (r >> 8) % 32);
}

inline float random_global_scale(std::mt19937& random) {
  return std::ldexp(0.5f + static_cast<float>(random() % 1000) / 2000.0f, -9);
}

/// Weight `i` of code bytes whose block scales stand in `scales`, in double: exact.
inline double weight_of(const uint8_t* codes, const uint8_t* scales, int64_t i, float global_scale) {
  return static_cast<double>(e2m1_to_float(codes[i / 2] >> 4 * (i % 2) & 15u)) *
         static_cast<double>(e4m3_to_float(scales[i / kGroup])) * static_cast<double>(global_scale);
}
inline double weight_of(const DenseGroup& group, int64_t i, float global_scale) {
  return weight_of(group.codes, &group.scale, i, global_scale);
}

}  // namespace twofour
