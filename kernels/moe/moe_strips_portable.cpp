#include <algorithm>
#include <array>

#include "formats/e2m1.h"
#include "formats/e4m3.h"
#include "kernels/moe/moe_strips.h"

namespace twofour {
namespace {

constexpr auto kCodes = [] {
  std::array<float, 16> table{};
  for (unsigned code = 0; code < 16; ++code) table[code] = e2m1_to_float(code);
  return table;
}();

constexpr auto kScales = [] {
  std::array<float, 256> table{};
  for (unsigned byte = 0; byte < 256; ++byte) table[byte] = e4m3_to_float(byte);
  return table;
}();

void multiply_sparse(const SparseStrip& s, const float* const* x, int tokens, float* out) {
  std::fill_n(out, tokens * kStripRows, 0.0f);
  for (int64_t g = 0; g < s.groups; ++g) {
    for (int r = 0; r < s.rows; ++r) {
      const auto byte = [&](int b) -> unsigned { return s.bytes[b][g * s.steps[b] + r]; };
      // Decode
      float values[8];
      int64_t places[8];
      for (int q = 0; q < 4; ++q) {
        const unsigned comp = byte(q), meta = byte(4 + q / 2) >> 4 * (q % 2);
        values[2 * q] = kCodes[comp & 15];
        values[2 * q + 1] = kCodes[comp >> 4];
        places[2 * q] = g * kGroup + 4 * q + (meta & 3);
        places[2 * q + 1] = g * kGroup + 4 * q + (meta >> 2 & 3);
      }
      const float scale = kScales[byte(6)];
      // Multiply
      for (int t = 0; t < tokens; ++t) {
        float sum = 0;
        for (int i = 0; i < 8; ++i) sum += values[i] * x[t][places[i]];
        out[t * kStripRows + r] += scale * sum;
      }
    }
  }
}

void multiply_dense(const DenseStrip& s, const float* const* x, int tokens, float* out) {
  float lanes[kStripTokens][8];
  for (int r = 0; r < s.rows; ++r) {
    std::fill_n(&lanes[0][0], 8 * tokens, 0.0f);
    for (int64_t g = 0; g < s.groups; ++g) {
      // Decode
      float even[8], odd[8];
      for (int i = 0; i < 8; ++i) {
        const unsigned byte = s.codes[r][8 * g + i];
        even[i] = kCodes[byte & 15];
        odd[i] = kCodes[byte >> 4];
      }
      const float scale = kScales[s.scales[r][g / 4 * s.scale_tile + g % 4 * s.scale_step]];
      // Multiply
      for (int t = 0; t < tokens; ++t) {
        const float* at = x[t] + g * kGroup;
        for (int i = 0; i < 8; ++i) lanes[t][i] += scale * (even[i] * at[i] + odd[i] * at[8 + i]);
      }
    }
    for (int t = 0; t < tokens; ++t) out[t * kStripRows + r] = sum_lanes(lanes[t]);
  }
}

}  // namespace

const MoeStrips kMoeStripsPortable = {multiply_sparse, multiply_dense};

}  // namespace twofour
