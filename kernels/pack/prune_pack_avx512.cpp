#include <immintrin.h>

#include <cstdint>

#include "kernels/pack/prune_pack_ops.h"

// This file is compiled for AVX-512 F, BW, VL, DQ, VBMI, IFMA and VNNI, and for GFNI. Everything here has
// internal linkage.

namespace twofour {
namespace {

constexpr int64_t kStepGroups = 16;  // 128 bytes of codes make a register of comp

/// The matrix for gf2p8affine that sets bit i of each byte to bit from[i] of the byte. The bit becomes zero
/// if from[i] is negative.
constexpr int64_t bit_matrix(const int (&from)[8]) {
  uint64_t matrix = 0;
  for (int i = 0; i < 8; ++i) {
    if (from[i] >= 0) matrix |= uint64_t{1} << (8 * (7 - i) + from[i]);
  }
  return static_cast<int64_t>(matrix);
}
// A sort key is magnitude << 5 | (3 - place) << 3 | sign. It sorts by magnitude, then by the lower place.
constexpr int64_t kKeyOfLowNibble = bit_matrix({3, -1, -1, -1, -1, 0, 1, 2});
constexpr int64_t kKeyOfHighNibble = bit_matrix({7, -1, -1, -1, -1, 4, 5, 6});
// Turns a key into place << 6 | code. The exclusive or with 0xC0 turns 3 - place into place.
constexpr int64_t kPlaceAndCode = bit_matrix({5, 6, 7, 0, -1, -1, 3, 4});

struct ByteIndices {
  alignas(64) uint8_t even[64], odd[64];
};
constexpr ByteIndices kIndices = [] {
  ByteIndices indices{};
  for (int i = 0; i < 64; ++i) {
    indices.even[i] = static_cast<uint8_t>(2 * i);
    indices.odd[i] = static_cast<uint8_t>(2 * i + 1);
  }
  return indices;
}();

/// The squares, repeated eight times. vpermb reads six bits of its index, and the lower three bits are the
/// magnitude of the code.
struct SquareTable {
  alignas(64) uint8_t squares[64];
};
constexpr SquareTable kSquares = [] {
  SquareTable table{};
  for (int i = 0; i < 64; ++i) table.squares[i] = kHalvesSquared[i % 8];
  return table;
}();

struct Tally {
  __m512i energy, kept_energy;  // eight sums each
  uint64_t tied, bad_scales;
};

/// Adds to each 32-bit lane the squares of the eight codes in it.
[[gnu::always_inline]] inline __m512i add_squares(__m512i total, __m512i codes) {
  const __m512i table = _mm512_load_si512(kSquares.squares), ones = _mm512_set1_epi8(1);
  total = _mm512_dpbusd_epi32(total, _mm512_permutexvar_epi8(codes, table), ones);
  return _mm512_dpbusd_epi32(total, _mm512_permutexvar_epi8(_mm512_srli_epi16(codes, 4), table), ones);
}

/// Adds sums of squares of sixteen groups to eight totals. Sums are 32 bits wide. They are multiplied by the
/// squared units of the even and of the odd groups. No product needs more than 47 of the 52 bits.
[[gnu::always_inline]] inline __m512i add_energy(__m512i total, __m512i sums, __m512i even_weights,
                                                 __m512i odd_weights) {
  total = _mm512_madd52lo_epu64(total, _mm512_and_si512(sums, _mm512_set1_epi64(0xFFFFFFFF)), even_weights);
  return _mm512_madd52lo_epu64(total, _mm512_srli_epi64(sums, 32), odd_weights);
}

/// Selects sixteen groups: 64 bytes of comp and 32 bytes of meta. `live` has a bit for each group that
/// exists. The codes of other groups are zero.
[[gnu::always_inline]] inline void select_step(__m512i codes0, __m512i codes1, __m128i scales, __mmask16 live,
                                               __mmask64 live_quads, uint8_t* comp_out, uint8_t* meta_out,
                                               Tally& tally) {
  // Keys
  const __m512i even = _mm512_permutex2var_epi8(codes0, _mm512_load_si512(kIndices.even), codes1);
  const __m512i odd = _mm512_permutex2var_epi8(codes0, _mm512_load_si512(kIndices.odd), codes1);
  const __m512i low_key = _mm512_set1_epi64(kKeyOfLowNibble), high_key = _mm512_set1_epi64(kKeyOfHighNibble);
  const __m512i k0 = _mm512_gf2p8affine_epi64_epi8(even, low_key, 3 << 3);
  const __m512i k1 = _mm512_gf2p8affine_epi64_epi8(even, high_key, 2 << 3);
  const __m512i k2 = _mm512_gf2p8affine_epi64_epi8(odd, low_key, 1 << 3);
  const __m512i k3 = _mm512_gf2p8affine_epi64_epi8(odd, high_key, 0 << 3);

  // Sort: two pairs; the larger head is first, and second and third are among the rest
  const __m512i a = _mm512_max_epu8(k0, k1), b = _mm512_min_epu8(k0, k1);
  const __m512i c = _mm512_max_epu8(k2, k3), d = _mm512_min_epu8(k2, k3);
  const __m512i p = _mm512_min_epu8(a, c), r = _mm512_max_epu8(b, d);
  const __m512i to_place = _mm512_set1_epi64(kPlaceAndCode);
  const __m512i first = _mm512_gf2p8affine_epi64_epi8(_mm512_max_epu8(a, c), to_place, 0xC0);
  const __m512i second = _mm512_gf2p8affine_epi64_epi8(_mm512_max_epu8(p, r), to_place, 0xC0);
  const __m512i low = _mm512_min_epu8(first, second), high = _mm512_max_epu8(first, second);
  const __mmask64 tied =
      _mm512_testn_epi8_mask(_mm512_xor_si512(p, r), _mm512_set1_epi8(static_cast<char>(0xE0)));
  tally.tied += static_cast<uint64_t>(__builtin_popcountll(tied & live_quads));

  // Pack; 0xCA is "if the mask has a one, the second operand, else the third"
  const __m512i comp = _mm512_ternarylogic_epi64(_mm512_set1_epi8(static_cast<char>(0xF0)),
                                                 _mm512_slli_epi16(high, 4), low, 0xCA);
  const __m512i nibbles = _mm512_ternarylogic_epi64(_mm512_set1_epi8(static_cast<char>(0xC0)), high,
                                                    _mm512_srli_epi16(low, 2), 0xCA);
  const __m512i meta = _mm512_ternarylogic_epi64(_mm512_set1_epi16(0x000F), _mm512_srli_epi16(nibbles, 4),
                                                 _mm512_srli_epi16(nibbles, 8), 0xCA);
  _mm512_storeu_si512(comp_out, comp);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(meta_out), _mm512_cvtepi16_epi8(meta));

  // Squares: a 32-bit lane of `even` and of `odd` is half a group, a lane of comp its kept codes
  const __m512i sums = add_squares(add_squares(_mm512_setzero_si512(), even), odd);
  const __m512i kept_sums = add_squares(_mm512_setzero_si512(), comp);

  // Weight with the block scale in units of 2^-9; a bad scale counts as zero
  const __mmask16 good = _mm_cmplt_epu8_mask(scales, _mm_set1_epi8(0x7F));
  tally.bad_scales += static_cast<uint64_t>(__builtin_popcount(static_cast<unsigned>(live & ~good)));
  const __m512i scale = _mm512_maskz_cvtepu8_epi32(good, scales);
  const __m512i exponent = _mm512_srli_epi32(scale, 3),
                mantissa = _mm512_and_si512(scale, _mm512_set1_epi32(7));
  const __mmask16 normal = _mm512_test_epi32_mask(exponent, exponent);
  const __m512i significand = _mm512_mask_or_epi32(mantissa, normal, mantissa, _mm512_set1_epi32(8));
  const __m512i shift = _mm512_mask_sub_epi32(exponent, normal, exponent, _mm512_set1_epi32(1));
  const __m512i units = _mm512_sllv_epi32(significand, shift), odd_units = _mm512_srli_epi64(units, 32);
  const __m512i even_weights = _mm512_mul_epu32(units, units),
                odd_weights = _mm512_mul_epu32(odd_units, odd_units);
  tally.energy = add_energy(tally.energy, sums, even_weights, odd_weights);
  tally.kept_energy = add_energy(tally.kept_energy, kept_sums, even_weights, odd_weights);
}

RunTally select(const uint8_t* codes, const uint8_t* scales, int64_t groups, const uint8_t* ahead,
                uint8_t* comp, uint8_t* meta) {
  Tally tally{_mm512_setzero_si512(), _mm512_setzero_si512(), 0, 0};
  int64_t g = 0;
  for (; g + kStepGroups <= groups; g += kStepGroups) {
    const uint8_t* p = codes + 8 * g;
    // Rows are too short for the hardware to prefetch far enough by itself.
    _mm_prefetch(reinterpret_cast<const char*>(ahead + 8 * g), _MM_HINT_T0);
    _mm_prefetch(reinterpret_cast<const char*>(ahead + 8 * g + 64), _MM_HINT_T0);
    select_step(_mm512_loadu_si512(p), _mm512_loadu_si512(p + 64),
                _mm_loadu_si128(reinterpret_cast<const __m128i*>(scales + g)), static_cast<__mmask16>(0xFFFF),
                ~__mmask64{0}, comp + 4 * g, meta + 2 * g, tally);
  }
  if (const int64_t left = groups - g; left > 0) {
    const auto bits = [](int64_t count) {
      return count <= 0 ? 0 : count >= 64 ? ~__mmask64{0} : (__mmask64{1} << count) - 1;
    };
    const uint8_t* p = codes + 8 * g;
    const auto live = static_cast<__mmask16>(bits(left));
    select_step(_mm512_maskz_loadu_epi8(bits(8 * left), p),
                _mm512_maskz_loadu_epi8(bits(8 * left - 64), p + 64), _mm_maskz_loadu_epi8(live, scales + g),
                live, bits(4 * left), comp + 4 * g, meta + 2 * g, tally);
  }
  return {tally.tied, tally.bad_scales, static_cast<uint64_t>(_mm512_reduce_add_epi64(tally.energy)),
          static_cast<uint64_t>(_mm512_reduce_add_epi64(tally.kept_energy))};
}

// --- Transpose ---

/// Transposes sixteen rows of sixteen bytes within each 128-bit lane, in four rounds of perfect shuffles.
[[gnu::always_inline]] inline void transpose_lanes(__m512i (&v)[16]) {
  __m512i t[16];
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < 8; ++i) {
      t[2 * i] = _mm512_unpacklo_epi8(v[i], v[i + 8]);
      t[2 * i + 1] = _mm512_unpackhi_epi8(v[i], v[i + 8]);
    }
    for (int i = 0; i < 8; ++i) {
      v[2 * i] = _mm512_unpacklo_epi8(t[i], t[i + 8]);
      v[2 * i + 1] = _mm512_unpackhi_epi8(t[i], t[i + 8]);
    }
  }
}

struct PlainStore {
  [[gnu::always_inline]] void operator()(uint8_t* p, __m512i v) const { _mm512_storeu_si512(p, v); }
};
struct StreamingStore {
  [[gnu::always_inline]] void operator()(uint8_t* p, __m512i v) const {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(p), v);
  }
};
struct MaskedStore {
  __mmask64 mask;
  [[gnu::always_inline]] void operator()(uint8_t* p, __m512i v) const { _mm512_mask_storeu_epi8(p, mask, v); }
};

/// Transposes 64 rows of 64 columns. `load(r)` returns row r, and `store(c, v)` receives column c.
template <class Load, class Store>
[[gnu::always_inline]] inline void transpose_64x64(Load load, Store store) {
  __m512i t[4][16];
  for (int b = 0; b < 4; ++b) {
    for (int i = 0; i < 16; ++i) t[b][i] = load(16 * b + i);
    transpose_lanes(t[b]);
  }
  // Lane l of t[b][i] holds column 16 l + i of rows 16 b and on. It remains to transpose lanes.
  for (int i = 0; i < 16; ++i) {
    const __m512i low01 = _mm512_shuffle_i32x4(t[0][i], t[1][i], 0x44);
    const __m512i high01 = _mm512_shuffle_i32x4(t[0][i], t[1][i], 0xEE);
    const __m512i low23 = _mm512_shuffle_i32x4(t[2][i], t[3][i], 0x44);
    const __m512i high23 = _mm512_shuffle_i32x4(t[2][i], t[3][i], 0xEE);
    store(i, _mm512_shuffle_i32x4(low01, low23, 0x88));
    store(16 + i, _mm512_shuffle_i32x4(low01, low23, 0xDD));
    store(32 + i, _mm512_shuffle_i32x4(high01, high23, 0x88));
    store(48 + i, _mm512_shuffle_i32x4(high01, high23, 0xDD));
  }
}

/// Transposes 64 rows of 16 columns. Rows at a distance of a quarter share a register, so no lanes need to be
/// moved.
template <class Store>
[[gnu::always_inline]] inline void transpose_64x16(const uint8_t* src, int64_t pitch, Store store) {
  __m512i v[16];
  for (int i = 0; i < 16; ++i) {
    const auto lane = [&](int l) {
      return _mm_loadu_si128(reinterpret_cast<const __m128i*>(src + (16 * l + i) * pitch));
    };
    const __m256i low = _mm256_inserti128_si256(_mm256_castsi128_si256(lane(0)), lane(1), 1);
    const __m256i high = _mm256_inserti128_si256(_mm256_castsi128_si256(lane(2)), lane(3), 1);
    v[i] = _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
  }
  transpose_lanes(v);
  for (int i = 0; i < 16; ++i) store(i, v[i]);
}

template <class Store>
void transpose_full_rows(const uint8_t* src, int64_t pitch, int64_t cols, uint8_t* const* dst, int64_t offset,
                         Store store) {
  const auto put = [&](int c, __m512i v) { store(dst[c] + offset, v); };
  if (cols == 64) {
    transpose_64x64([&](int r) { return _mm512_loadu_si512(src + r * pitch); }, put);
  } else {
    transpose_64x16(src, pitch, put);
  }
}

/// Transposes a tile of at most 64 rows and columns.
[[gnu::noinline]] void transpose_edge(const uint8_t* src, int64_t pitch, int64_t rows, int64_t cols,
                                      uint8_t* const* dst, int64_t offset) {
  const __mmask64 live_cols = cols == 64 ? ~__mmask64{0} : (__mmask64{1} << cols) - 1;
  const MaskedStore store{rows == 64 ? ~__mmask64{0} : (__mmask64{1} << rows) - 1};
  transpose_64x64(
      [&](int r) {
        return r < rows ? _mm512_maskz_loadu_epi8(live_cols, src + r * pitch) : _mm512_setzero_si512();
      },
      [&](int c, __m512i v) {
        if (c < cols) store(dst[c] + offset, v);
      });
}

void transpose(const uint8_t* src, int64_t pitch, int64_t rows, int64_t cols, uint8_t* const* dst,
               int64_t offset, bool streaming) {
  for (int64_t c = 0; c < cols;) {
    const int64_t width = cols - c >= 64 ? 64 : cols - c >= 16 ? 16 : cols - c;
    for (int64_t r = 0; r < rows; r += 64) {
      const uint8_t* tile = src + r * pitch + c;
      const int64_t height = rows - r < 64 ? rows - r : 64;
      if (height < 64 || width < 16) {
        transpose_edge(tile, pitch, height, width, dst + c, offset + r);
      } else if (streaming) {
        transpose_full_rows(tile, pitch, width, dst + c, offset + r, StreamingStore{});
      } else {
        transpose_full_rows(tile, pitch, width, dst + c, offset + r, PlainStore{});
      }
    }
    c += width;
  }
}

void fence() { _mm_sfence(); }

}  // namespace

const PrunePackOps kPrunePackAvx512 = {select, transpose, fence};

}  // namespace twofour
