#include "kernels/numbers/dequantize.h"

#include <cstring>
#include <vector>

#include "formats/e2m1.h"
#include "formats/e4m3.h"
#include "formats/half.h"

namespace twofour {
namespace {

uint16_t weight(unsigned code, unsigned scale, float global_scale) {
  return bf16_from_float(e2m1_to_float(code) * e4m3_to_float(scale) * global_scale);
}

/// A table of the weights of all codes and block scales under one global scale. It takes 4 KB, so it stays in
/// the L1 cache.
struct WeightTable {
  uint16_t of[128][16];
  explicit WeightTable(float global_scale) {
    for (unsigned scale = 0; scale < 128; ++scale) {
      for (unsigned code = 0; code < 16; ++code) of[scale][code] = weight(code, scale, global_scale);
    }
  }
  const uint16_t* row(uint8_t scale) const { return of[scale & 0x7F]; }
};

}  // namespace

void dequantize_bf16(const CodeBlocks& b, float global_scale, uint8_t* out) {
  const WeightTable table(global_scale);
  for (int64_t block = 0; block < b.blocks; ++block) {
    const uint8_t *codes = b.codes + block * 8 * b.n, *scales = b.scales + block * b.n;
    uint8_t* to = out + block * 32 * b.n;
    if (b.n == 1) {
      const uint16_t* row = table.row(*scales);
      uint16_t weights[16];
      for (int j = 0; j < 8; ++j) {
        weights[2 * j] = row[codes[j] & 15];
        weights[2 * j + 1] = row[codes[j] >> 4];
      }
      std::memcpy(to, weights, sizeof(weights));
      continue;
    }
    for (int64_t j = 0; j < 8; ++j) {
      for (int64_t n = 0; n < b.n; ++n) {
        const uint16_t* row = table.row(scales[n]);
        const uint8_t byte = codes[j * b.n + n];
        std::memcpy(to + 2 * (2 * j * b.n + n), &row[byte & 15], 2);
        std::memcpy(to + 2 * ((2 * j + 1) * b.n + n), &row[byte >> 4], 2);
      }
    }
  }
}

void dequantize_bf16_reference(const CodeBlocks& b, float global_scale, uint8_t* out) {
  for (int64_t block = 0; block < b.blocks; ++block) {
    for (int64_t k = 0; k < 16; ++k) {
      for (int64_t n = 0; n < b.n; ++n) {
        const unsigned byte = b.codes[(block * 8 + k / 2) * b.n + n];
        const uint16_t bits = weight(byte >> 4 * (k % 2) & 15u, b.scales[block * b.n + n], global_scale);
        std::memcpy(out + 2 * ((block * 16 + k) * b.n + n), &bits, sizeof(bits));
      }
    }
  }
}

}  // namespace twofour
