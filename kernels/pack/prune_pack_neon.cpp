#include <arm_neon.h>

#include <cstdint>

#include "kernels/pack/prune_pack_ops.h"

namespace twofour {
namespace {

constexpr int64_t kStepGroups = 4;  // 32 bytes of codes make a register of comp

uint8x16_t lookup(const Table16& table, uint8x16_t nibbles) {
  return vqtbl1q_u8(vld1q_u8(table.entry), nibbles);
}

uint8x16_t low_nibbles(uint8x16_t x) { return vandq_u8(x, vdupq_n_u8(15)); }
uint8x16_t high_nibbles(uint8x16_t x) { return vshrq_n_u8(x, 4); }

uint8x16_t place_and_code(uint8x16_t key) {
  return vorrq_u8(lookup(kPlaceAndCodeOfHigh, high_nibbles(key)),
                  lookup(kPlaceAndCodeOfLow, low_nibbles(key)));
}

struct Tally {
  uint64x2_t energy, kept_energy;
  uint16x8_t tied;        ///< at most two in each lane and step
  uint32x4_t bad_scales;  ///< at most one in each lane and step
};
static_assert(2 * (kMaxRunGroups / kStepGroups + 1) <= UINT16_MAX);

/// Adds sum * units^2 of four groups. A sum is at most 16 * 144 and units are at most 229376, so their
/// product fits 32 bits.
uint64x2_t add_energy(uint64x2_t total, uint32x4_t sums, uint32x4_t units) {
  const uint32x4_t product = vmulq_u32(sums, units);
  total = vmlal_u32(total, vget_low_u32(product), vget_low_u32(units));
  return vmlal_high_u32(total, product, units);
}

/// Sums of the squares of the codes in two adjacent bytes.
uint16x8_t sums_of_two(uint8x16_t codes) {
  return vpadalq_u8(vpaddlq_u8(lookup(kSquares, low_nibbles(codes))), lookup(kSquares, high_nibbles(codes)));
}

/// Selects four groups: 16 bytes of comp and 8 of meta.
void select_step(const uint8_t* codes, const uint8_t* scales, uint8_t* comp_out, uint8_t* meta_out,
                 Tally& tally) {
  const uint8x16x2_t turned = vld2q_u8(codes);
  const uint8x16_t even = turned.val[0], odd = turned.val[1];

  // Keys
  const uint8x16_t k0 = lookup(kKeys[0], low_nibbles(even)), k1 = lookup(kKeys[1], high_nibbles(even));
  const uint8x16_t k2 = lookup(kKeys[2], low_nibbles(odd)), k3 = lookup(kKeys[3], high_nibbles(odd));

  // Sort: two pairs; the larger head is first, and second and third are among the rest
  const uint8x16_t a = vmaxq_u8(k0, k1), b = vminq_u8(k0, k1);
  const uint8x16_t c = vmaxq_u8(k2, k3), d = vminq_u8(k2, k3);
  const uint8x16_t p = vminq_u8(a, c), r = vmaxq_u8(b, d);
  const uint8x16_t first = place_and_code(vmaxq_u8(a, c)), second = place_and_code(vmaxq_u8(p, r));
  const uint8x16_t low = vminq_u8(first, second), high = vmaxq_u8(first, second);
  const uint8x16_t differs = vtstq_u8(veorq_u8(p, r), vdupq_n_u8(0xE0));
  tally.tied = vpadalq_u8(tally.tied, vaddq_u8(differs, vdupq_n_u8(1)));

  // Pack: the places of a quad end up in the upper nibble
  const uint8x16_t comp = vsliq_n_u8(low, high, 4);
  const uint8x16_t places = vsriq_n_u8(high, low, 2);
  const uint8x16_t meta = vsriq_n_u8(vuzp2q_u8(places, places), vuzp1q_u8(places, places), 4);
  vst1q_u8(comp_out, comp);
  vst1_u8(meta_out, vget_low_u8(meta));

  // Squares: eight code bytes in each group, then four kept ones
  const uint32x4_t sums = vpaddlq_u16(vaddq_u16(sums_of_two(even), sums_of_two(odd)));
  const uint32x4_t kept_sums = vpaddlq_u16(sums_of_two(comp));

  // Weight with the block scale in units of 2^-9; a bad scale counts as zero
  uint32_t four = 0;
  __builtin_memcpy(&four, scales, sizeof four);
  const uint32x4_t stored = vmovl_u16(vget_low_u16(vmovl_u8(vcreate_u8(four))));
  const uint32x4_t bad = vcgeq_u32(stored, vdupq_n_u32(0x7F));
  tally.bad_scales = vsubq_u32(tally.bad_scales, bad);
  const uint32x4_t scale = vbicq_u32(stored, bad);
  const uint32x4_t exponent = vshrq_n_u32(scale, 3), mantissa = vandq_u32(scale, vdupq_n_u32(7));
  const uint32x4_t normal = vtstq_u32(exponent, exponent);  // -1 if normal
  const uint32x4_t significand = vorrq_u32(mantissa, vandq_u32(normal, vdupq_n_u32(8)));
  const uint32x4_t units = vshlq_u32(significand, vreinterpretq_s32_u32(vaddq_u32(exponent, normal)));
  tally.energy = add_energy(tally.energy, sums, units);
  tally.kept_energy = add_energy(tally.kept_energy, kept_sums, units);
}

RunTally select(const uint8_t* codes, const uint8_t* scales, int64_t groups, const uint8_t* ahead,
                uint8_t* comp, uint8_t* meta) {
  Tally tally{vdupq_n_u64(0), vdupq_n_u64(0), vdupq_n_u16(0), vdupq_n_u32(0)};
  int64_t g = 0, padding = 0;
  for (; g + kStepGroups <= groups; g += kStepGroups) {
    __builtin_prefetch(ahead + 8 * g);
    select_step(codes + 8 * g, scales + g, comp + 4 * g, meta + 2 * g, tally);
  }
  if (const int64_t left = groups - g; left > 0) {
    uint8_t padded_codes[8 * kStepGroups] = {}, padded_scales[kStepGroups] = {};
    for (int64_t i = 0; i < 8 * left; ++i) padded_codes[i] = codes[8 * g + i];
    for (int64_t i = 0; i < left; ++i) padded_scales[i] = scales[g + i];
    select_step(padded_codes, padded_scales, comp + 4 * g, meta + 2 * g, tally);
    padding = kStepGroups - left;
  }
  // Quads of padding are zeros and therefore tied.
  const uint64_t tied = vaddlvq_u16(tally.tied) - static_cast<uint64_t>(4 * padding);
  return {tied, vaddlvq_u32(tally.bad_scales), vaddvq_u64(tally.energy), vaddvq_u64(tally.kept_energy)};
}

// --- Transpose ---

/// Transposes sixteen rows of sixteen bytes in four rounds of perfect shuffles.
void transpose_16x16(const uint8_t* src, int64_t pitch, uint8_t* const* dst, int64_t offset) {
  uint8x16_t v[16], t[16];
  for (int i = 0; i < 16; ++i) v[i] = vld1q_u8(src + i * pitch);
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < 8; ++i) {
      t[2 * i] = vzip1q_u8(v[i], v[i + 8]);
      t[2 * i + 1] = vzip2q_u8(v[i], v[i + 8]);
    }
    for (int i = 0; i < 8; ++i) {
      v[2 * i] = vzip1q_u8(t[i], t[i + 8]);
      v[2 * i + 1] = vzip2q_u8(t[i], t[i + 8]);
    }
  }
  for (int i = 0; i < 16; ++i) vst1q_u8(dst[i] + offset, v[i]);
}

/// These processors detect by themselves that whole lines are overwritten, so `streaming` has no effect.
void transpose(const uint8_t* src, int64_t pitch, int64_t rows, int64_t cols, uint8_t* const* dst,
               int64_t offset, bool /*streaming*/) {
  // A destination line is filled before the next columns are begun.
  constexpr int64_t kLine = 64;
  const int64_t whole_rows = rows / 16 * 16, whole_cols = cols / 16 * 16;
  for (int64_t r0 = 0; r0 < whole_rows; r0 += kLine) {
    for (int64_t c = 0; c < whole_cols; c += 16) {
      for (int64_t r = r0; r < whole_rows && r < r0 + kLine; r += 16) {
        transpose_16x16(src + r * pitch + c, pitch, dst + c, offset + r);
      }
    }
  }
  for (int64_t c = 0; c < cols; ++c) {
    for (int64_t r = c < whole_cols ? whole_rows : 0; r < rows; ++r) dst[c][offset + r] = src[r * pitch + c];
  }
}

void fence() {}

}  // namespace

const PrunePackOps kPrunePackNeon = {select, transpose, fence};

}  // namespace twofour
