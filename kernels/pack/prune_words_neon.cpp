#include <arm_neon.h>

#include "kernels/pack/prune_pack_ops.h"
#include "kernels/pack/prune_words.h"

namespace twofour {
namespace {

using Words = uint64_t __attribute__((vector_size(16)));

Words words(uint16x8_t x) { return reinterpret_cast<Words>(x); }
Words words(uint8x16_t x) { return reinterpret_cast<Words>(x); }

/// The squares, in halves, of the low or of the high codes of each byte.
uint8x16_t squares(uint8x16_t nibbles) { return vqtbl1q_u8(vld1q_u8(kSquares.entry), nibbles); }
uint8x16_t low_squares(uint8x16_t x) { return squares(vandq_u8(x, vdupq_n_u8(15))); }
uint8x16_t high_squares(uint8x16_t x) { return squares(vshrq_n_u8(x, 4)); }

/// The sums of squares of each word.
uint64x2_t energy_of(uint8x16_t low, uint8x16_t high) {
  return vpaddlq_u32(vpaddlq_u16(vpadalq_u8(vpaddlq_u8(low), high)));
}

template <bool pairs>
void prune_run(const uint8_t* codes, int64_t count, uint8_t* out, uint64_t* energy, uint64_t* kept_energy,
               uint64_t& tied) {
  Words ties = {0, 0};
  for (int64_t i = 0; i < count; i += 2) {
    // Load
    const uint8x16_t x = vld1q_u8(codes + 8 * i);
    const uint8x16_t low = low_squares(x), high = high_squares(x);
    // Select
    uint8x16_t mask;
    if constexpr (pairs) {
      const uint16x8_t first = vaddl_u8(vget_low_u8(low), vget_low_u8(high)),
                       second = vaddl_high_u8(low, high);
      mask = vuzp1q_u8(reinterpret_cast<uint8x16_t>(keep_two<16>(words(first), ties)),
                       reinterpret_cast<uint8x16_t>(keep_two<16>(words(second), ties)));
    } else {
      mask = reinterpret_cast<uint8x16_t>(keep_two<4>(words(vandq_u8(x, vdupq_n_u8(0x77))), ties));
    }
    const uint8x16_t kept = vandq_u8(x, mask);
    // Store
    vst1q_u8(out + 8 * i, kept);
    vst1q_u64(energy + i, energy_of(low, high));
    vst1q_u64(kept_energy + i, energy_of(low_squares(kept), high_squares(kept)));
  }
  tied += ties[0] + ties[1];
}

}  // namespace

void prune_words_neon(bool pairs, const uint8_t* codes, int64_t count, uint8_t* out, uint64_t* energy,
                      uint64_t* kept_energy, uint64_t& tied) {
  if (pairs) {
    prune_run<true>(codes, count, out, energy, kept_energy, tied);
  } else {
    prune_run<false>(codes, count, out, energy, kept_energy, tied);
  }
}

}  // namespace twofour
