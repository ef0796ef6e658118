#include <immintrin.h>

#include <cstdint>

#include "kernels/pack/prune_pack_ops.h"

// This file is compiled for AVX2 and POPCNT. Everything here has internal linkage.

namespace twofour {
namespace {

constexpr int64_t kStepGroups = 8;  // 64 bytes of codes make a register of comp

[[gnu::always_inline]] inline __m256i lookup(const Table16& table, __m256i nibbles) {
  const __m128i entries = _mm_load_si128(reinterpret_cast<const __m128i*>(table.entry));
  return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(entries), nibbles);
}

[[gnu::always_inline]] inline __m256i low_nibbles(__m256i x) {
  return _mm256_and_si256(x, _mm256_set1_epi8(15));
}
[[gnu::always_inline]] inline __m256i high_nibbles(__m256i x) { return low_nibbles(_mm256_srli_epi16(x, 4)); }

[[gnu::always_inline]] inline __m256i place_and_code(__m256i key) {
  return _mm256_or_si256(lookup(kPlaceAndCodeOfHigh, high_nibbles(key)),
                         lookup(kPlaceAndCodeOfLow, low_nibbles(key)));
}

/// Takes bits from `yes` where `mask` has a one, and from `no` elsewhere.
[[gnu::always_inline]] inline __m256i merge(__m256i mask, __m256i yes, __m256i no) {
  return _mm256_or_si256(_mm256_and_si256(mask, yes), _mm256_andnot_si256(mask, no));
}

/// Packs 16-bit lanes whose values fit a byte, in order. packus by itself would interleave the halves.
[[gnu::always_inline]] inline __m256i pack_bytes(__m256i a, __m256i b) {
  return _mm256_permute4x64_epi64(_mm256_packus_epi16(a, b), 0xD8);
}

struct Tally {
  __m256i energy, kept_energy;  // four sums each
  uint64_t tied, bad_scales;
};

/// Adds sum * units^2 of eight groups to four sums. Both factors are 32 bits wide.
[[gnu::always_inline]] inline __m256i add_energy(__m256i total, __m256i sums, __m256i units,
                                                 __m256i odd_units) {
  const __m256i odd_sums = _mm256_srli_epi64(sums, 32);
  const __m256i even = _mm256_mul_epu32(_mm256_mul_epu32(sums, units), units);
  const __m256i odd = _mm256_mul_epu32(_mm256_mul_epu32(odd_sums, odd_units), odd_units);
  return _mm256_add_epi64(total, _mm256_add_epi64(even, odd));
}

/// The sums of the squares of the codes in eight bytes, in the low half of each 64-bit lane.
[[gnu::always_inline]] inline __m256i sums_of_eight(__m256i codes) {
  const __m256i zero = _mm256_setzero_si256();
  return _mm256_add_epi64(_mm256_sad_epu8(lookup(kSquares, low_nibbles(codes)), zero),
                          _mm256_sad_epu8(lookup(kSquares, high_nibbles(codes)), zero));
}

/// Selects eight groups: 32 bytes of comp and 16 bytes of meta. Only `live` groups exist; the codes and
/// scales of the others are zero.
[[gnu::always_inline]] inline void select_step(const uint8_t* codes, const uint8_t* scales, int64_t live,
                                               uint8_t* comp_out, uint8_t* meta_out, Tally& tally) {
  const __m256i codes0 = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes));
  const __m256i codes1 = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + 32));

  // Keys
  const __m256i low_bytes = _mm256_set1_epi16(0xFF);
  const __m256i even = pack_bytes(_mm256_and_si256(codes0, low_bytes), _mm256_and_si256(codes1, low_bytes));
  const __m256i odd = pack_bytes(_mm256_srli_epi16(codes0, 8), _mm256_srli_epi16(codes1, 8));
  const __m256i k0 = lookup(kKeys[0], low_nibbles(even)), k1 = lookup(kKeys[1], high_nibbles(even));
  const __m256i k2 = lookup(kKeys[2], low_nibbles(odd)), k3 = lookup(kKeys[3], high_nibbles(odd));

  // Sort: two pairs; the larger head is first, and second and third are among the rest
  const __m256i a = _mm256_max_epu8(k0, k1), b = _mm256_min_epu8(k0, k1);
  const __m256i c = _mm256_max_epu8(k2, k3), d = _mm256_min_epu8(k2, k3);
  const __m256i p = _mm256_min_epu8(a, c), r = _mm256_max_epu8(b, d);
  const __m256i first = place_and_code(_mm256_max_epu8(a, c)), second = place_and_code(_mm256_max_epu8(p, r));
  const __m256i low = _mm256_min_epu8(first, second), high = _mm256_max_epu8(first, second);
  const __m256i differs = _mm256_and_si256(_mm256_xor_si256(p, r), _mm256_set1_epi8(static_cast<char>(0xE0)));
  const auto tied =
      static_cast<unsigned>(_mm256_movemask_epi8(_mm256_cmpeq_epi8(differs, _mm256_setzero_si256())));
  const unsigned live_quads = live >= kStepGroups ? ~0u : (1u << 4 * live) - 1;
  tally.tied += static_cast<uint64_t>(__builtin_popcount(tied & live_quads));

  // Pack
  const __m256i comp = merge(_mm256_set1_epi8(15), low, _mm256_slli_epi16(high, 4));
  const __m256i nibbles = merge(_mm256_set1_epi8(static_cast<char>(0xC0)), high, _mm256_srli_epi16(low, 2));
  const __m256i meta = _mm256_and_si256(
      merge(_mm256_set1_epi16(15), _mm256_srli_epi16(nibbles, 4), _mm256_srli_epi16(nibbles, 8)), low_bytes);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(comp_out), comp);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(meta_out), _mm256_castsi256_si128(pack_bytes(meta, meta)));

  // Squares: eight code bytes in each group, then four kept ones
  const __m256i both = _mm256_or_si256(sums_of_eight(codes0), _mm256_slli_epi64(sums_of_eight(codes1), 32));
  const __m256i sums = _mm256_permutevar8x32_epi32(both, _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7));
  const __m256i ones8 = _mm256_set1_epi8(1), ones16 = _mm256_set1_epi16(1);
  const __m256i kept_pairs =
      _mm256_add_epi16(_mm256_maddubs_epi16(lookup(kSquares, low_nibbles(comp)), ones8),
                       _mm256_maddubs_epi16(lookup(kSquares, high_nibbles(comp)), ones8));
  const __m256i kept_sums = _mm256_madd_epi16(kept_pairs, ones16);

  // Weight with the block scale in units of 2^-9; a bad scale counts as zero
  const __m128i stored = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(scales));
  const __m128i bad = _mm_cmpeq_epi8(_mm_max_epu8(stored, _mm_set1_epi8(0x7F)), stored);
  tally.bad_scales +=
      static_cast<uint64_t>(__builtin_popcount(static_cast<unsigned>(_mm_movemask_epi8(bad)) & 0xFFu));
  const __m256i scale = _mm256_cvtepu8_epi32(_mm_andnot_si128(bad, stored));
  const __m256i exponent = _mm256_srli_epi32(scale, 3),
                mantissa = _mm256_and_si256(scale, _mm256_set1_epi32(7));
  const __m256i normal = _mm256_cmpgt_epi32(exponent, _mm256_setzero_si256());  // -1 if normal
  const __m256i significand = _mm256_or_si256(mantissa, _mm256_and_si256(normal, _mm256_set1_epi32(8)));
  const __m256i units = _mm256_sllv_epi32(significand, _mm256_add_epi32(exponent, normal));
  const __m256i odd_units = _mm256_srli_epi64(units, 32);
  tally.energy = add_energy(tally.energy, sums, units, odd_units);
  tally.kept_energy = add_energy(tally.kept_energy, kept_sums, units, odd_units);
}

uint64_t sum_lanes(__m256i v) {
  alignas(32) uint64_t lanes[4];
  _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), v);
  return lanes[0] + lanes[1] + lanes[2] + lanes[3];
}

RunTally select(const uint8_t* codes, const uint8_t* scales, int64_t groups, const uint8_t* ahead,
                uint8_t* comp, uint8_t* meta) {
  Tally tally{_mm256_setzero_si256(), _mm256_setzero_si256(), 0, 0};
  int64_t g = 0;
  for (; g + kStepGroups <= groups; g += kStepGroups) {
    // Rows are too short for the hardware to prefetch far enough by itself.
    _mm_prefetch(reinterpret_cast<const char*>(ahead + 8 * g), _MM_HINT_T0);
    select_step(codes + 8 * g, scales + g, kStepGroups, comp + 4 * g, meta + 2 * g, tally);
  }
  if (const int64_t left = groups - g; left > 0) {
    uint8_t padded_codes[8 * kStepGroups] = {}, padded_scales[kStepGroups] = {};
    for (int64_t i = 0; i < 8 * left; ++i) padded_codes[i] = codes[8 * g + i];
    for (int64_t i = 0; i < left; ++i) padded_scales[i] = scales[g + i];
    select_step(padded_codes, padded_scales, left, comp + 4 * g, meta + 2 * g, tally);
  }
  return {tally.tied, tally.bad_scales, sum_lanes(tally.energy), sum_lanes(tally.kept_energy)};
}

// --- Transpose ---

/// Transposes sixteen rows of sixteen bytes within each 128-bit lane, in four rounds of perfect shuffles.
[[gnu::always_inline]] inline void transpose_lanes(__m256i (&v)[16]) {
  __m256i t[16];
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < 8; ++i) {
      t[2 * i] = _mm256_unpacklo_epi8(v[i], v[i + 8]);
      t[2 * i + 1] = _mm256_unpackhi_epi8(v[i], v[i + 8]);
    }
    for (int i = 0; i < 8; ++i) {
      v[2 * i] = _mm256_unpacklo_epi8(t[i], t[i + 8]);
      v[2 * i + 1] = _mm256_unpackhi_epi8(t[i], t[i + 8]);
    }
  }
}

struct PlainStore {
  [[gnu::always_inline]] void operator()(uint8_t* p, __m256i v) const {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v);
  }
};
struct StreamingStore {
  [[gnu::always_inline]] void operator()(uint8_t* p, __m256i v) const {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(p), v);
  }
};

/// Transposes 64 rows of 16 columns. Rows at a distance of 16 share a register. Both halves of a destination
/// line are stored together, because half a line written around the cache costs as much as a whole line.
template <class Store>
[[gnu::always_inline]] inline void transpose_64x16(const uint8_t* src, int64_t pitch, uint8_t* const* dst,
                                                   int64_t offset, Store store) {
  __m256i v[2][16];
  for (int half = 0; half < 2; ++half) {
    for (int i = 0; i < 16; ++i) {
      const auto lane = [&](int l) {
        return _mm_loadu_si128(reinterpret_cast<const __m128i*>(src + (32 * half + 16 * l + i) * pitch));
      };
      v[half][i] = _mm256_inserti128_si256(_mm256_castsi128_si256(lane(0)), lane(1), 1);
    }
    transpose_lanes(v[half]);
  }
  for (int i = 0; i < 16; ++i) {
    store(dst[i] + offset, v[0][i]);
    store(dst[i] + offset + 32, v[1][i]);
  }
}

/// Transposes a tile of at most 64 rows and 16 columns, by way of a full tile.
[[gnu::noinline]] void transpose_edge(const uint8_t* src, int64_t pitch, int64_t rows, int64_t cols,
                                      uint8_t* const* dst, int64_t offset) {
  alignas(64) uint8_t padded[64][16], columns[16][64];
  for (int64_t r = 0; r < 64; ++r) {
    for (int64_t c = 0; c < 16; ++c) padded[r][c] = r < rows && c < cols ? src[r * pitch + c] : uint8_t{0};
  }
  uint8_t* column[16];
  for (int c = 0; c < 16; ++c) column[c] = columns[c];
  transpose_64x16(padded[0], 16, column, 0, PlainStore{});
  for (int64_t c = 0; c < cols; ++c) {
    for (int64_t r = 0; r < rows; ++r) dst[c][offset + r] = columns[c][r];
  }
}

void transpose(const uint8_t* src, int64_t pitch, int64_t rows, int64_t cols, uint8_t* const* dst,
               int64_t offset, bool streaming) {
  for (int64_t c = 0; c < cols; c += 16) {
    const int64_t width = cols - c < 16 ? cols - c : 16;
    for (int64_t r = 0; r < rows; r += 64) {
      const uint8_t* tile = src + r * pitch + c;
      const int64_t height = rows - r < 64 ? rows - r : 64;
      if (height < 64 || width < 16) {
        transpose_edge(tile, pitch, height, width, dst + c, offset + r);
      } else if (streaming) {
        transpose_64x16(tile, pitch, dst + c, offset + r, StreamingStore{});
      } else {
        transpose_64x16(tile, pitch, dst + c, offset + r, PlainStore{});
      }
    }
  }
}

void fence() { _mm_sfence(); }

}  // namespace

const PrunePackOps kPrunePackAvx2 = {select, transpose, fence};

}  // namespace twofour
