#include <immintrin.h>

#include "kernels/moe/moe_strips.h"

// This file is compiled for AVX2. It computes eight rows of a 2:4 expert at a time, or eight pairs of a dense
// row.

namespace twofour {
namespace {

[[gnu::always_inline]] inline __m256i load8(const uint8_t* from) {
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
}

/// Decodes E2M1 from the low three bits of each lane, with the sign in the top bit of `sign`.
[[gnu::always_inline]] inline __m256 decode(__m256i code, __m256i sign) {
  const __m256 magnitudes = _mm256_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f);
  const __m256i top = _mm256_set1_epi32(INT32_MIN);
  return _mm256_xor_ps(_mm256_permutevar8x32_ps(magnitudes, code),
                       _mm256_castsi256_ps(_mm256_and_si256(sign, top)));
}
[[gnu::always_inline]] inline __m256 decode_low(__m256i byte) {
  return decode(byte, _mm256_slli_epi32(byte, 28));
}
[[gnu::always_inline]] inline __m256 decode_high(__m256i byte) {
  return decode(_mm256_srli_epi32(byte, 4), _mm256_slli_epi32(byte, 24));
}

/// Decodes E4M3 block scales, which are not negative, as multiples of 2^-9.
[[gnu::always_inline]] inline __m256 decode_scales(__m256i byte) {
  const __m256i exponent = _mm256_srli_epi32(byte, 3),
                mantissa = _mm256_and_si256(byte, _mm256_set1_epi32(7));
  const __m256i one = _mm256_set1_epi32(1), normal = _mm256_cmpgt_epi32(exponent, _mm256_setzero_si256());
  const __m256i hidden = _mm256_and_si256(normal, _mm256_set1_epi32(8));
  const __m256i shift = _mm256_and_si256(normal, _mm256_sub_epi32(exponent, one));
  const __m256i units = _mm256_sllv_epi32(_mm256_or_si256(mantissa, hidden), shift);
  return _mm256_mul_ps(_mm256_cvtepi32_ps(units), _mm256_set1_ps(0x1p-9f));
}

/// Multiplies rows [r, r + 8) by all tokens.
template <bool one_token>
[[gnu::always_inline]] inline void multiply_eight(const SparseStrip& s, int64_t g, int r,
                                                  const float* const* x, int tokens, float* out) {
  const auto bytes = [&](int b) { return load8(s.bytes[b] + g * s.steps[b] + r); };
  // Decode
  __m256 values[8];
  __m256i places[4];  // lower code's place in bits 0 and 1, higher code's in bits 2 and 3
  for (int q = 0; q < 4; ++q) {
    const __m256i comp = bytes(q);
    values[2 * q] = decode_low(comp);
    values[2 * q + 1] = decode_high(comp);
    places[q] = q % 2 == 0 ? bytes(4 + q / 2) : _mm256_srli_epi32(places[q - 1], 4);
  }
  const __m256 scale = decode_scales(bytes(6));
  // Multiply
  for (int t = 0; t < (one_token ? 1 : tokens); ++t) {
    __m256 sum = _mm256_setzero_ps();
    for (int q = 0; q < 4; ++q) {
      // Both halves hold the quad, so the third bit of a place does not matter.
      const __m256 quad = _mm256_broadcast_ps(reinterpret_cast<const __m128*>(x[t] + g * kGroup + 4 * q));
      const __m256 first = _mm256_permutevar8x32_ps(quad, places[q]);
      const __m256 second = _mm256_permutevar8x32_ps(quad, _mm256_srli_epi32(places[q], 2));
      sum = _mm256_add_ps(sum, _mm256_mul_ps(values[2 * q], first));
      sum = _mm256_add_ps(sum, _mm256_mul_ps(values[2 * q + 1], second));
    }
    float* to = out + t * kStripRows + r;
    _mm256_storeu_ps(to, _mm256_add_ps(_mm256_loadu_ps(to), _mm256_mul_ps(scale, sum)));
  }
}

void multiply_sparse(const SparseStrip& s, const float* const* x, int tokens, float* out) {
  const int whole = s.rows / 8 * 8;
  if (whole < s.rows) {
    // Only the last rows remain. The rows before them are written below.
    SparseStrip rest = s;
    for (const uint8_t*& byte : rest.bytes) byte += whole;
    rest.rows = s.rows - whole;
    float sums[kStripTokens * kStripRows];
    kMoeStripsPortable.sparse(rest, x, tokens, sums);
    for (int t = 0; t < tokens; ++t)
      for (int r = 0; r < rest.rows; ++r) out[t * kStripRows + whole + r] = sums[t * kStripRows + r];
  }
  for (int t = 0; t < tokens; ++t)
    for (int r = 0; r < whole; ++r) out[t * kStripRows + r] = 0;
  for (int64_t g = 0; g < s.groups; ++g) {
    for (int r = 0; r < whole; r += 8) {
      if (tokens == 1) {
        multiply_eight<true>(s, g, r, x, tokens, out);
      } else {
        multiply_eight<false>(s, g, r, x, tokens, out);
      }
    }
  }
}

/// Multiplies four adjacent rows at a time, so that their sums do not wait for each other.
template <int rows>
[[gnu::always_inline]] inline void multiply_rows(const DenseStrip& s, int r, const float* x, float* out) {
  __m256 sums[rows];
  for (__m256& sum : sums) sum = _mm256_setzero_ps();
  for (int64_t g = 0; g < s.groups; ++g) {
    const __m256 even = _mm256_loadu_ps(x + g * kGroup), odd = _mm256_loadu_ps(x + g * kGroup + 8);
    const int64_t at = g / 4 * s.scale_tile + g % 4 * s.scale_step;
    for (int i = 0; i < rows; ++i) {
      const __m256i codes = load8(s.codes[r + i] + 8 * g);
      const __m256 sum =
          _mm256_add_ps(_mm256_mul_ps(decode_low(codes), even), _mm256_mul_ps(decode_high(codes), odd));
      const __m256 scale = decode_scales(_mm256_set1_epi32(s.scales[r + i][at]));
      sums[i] = _mm256_add_ps(sums[i], _mm256_mul_ps(scale, sum));
    }
  }
  for (int i = 0; i < rows; ++i) {
    float lanes[8];
    _mm256_storeu_ps(lanes, sums[i]);
    out[r + i] = sum_lanes(lanes);
  }
}

void multiply_dense(const DenseStrip& s, const float* const* x, int tokens, float* out) {
  if (tokens == 1) {
    int r = 0;
    for (; r + 4 <= s.rows; r += 4) multiply_rows<4>(s, r, x[0], out);
    for (; r < s.rows; ++r) multiply_rows<1>(s, r, x[0], out);
    return;
  }
  __m256 sums[kStripTokens];
  for (int r = 0; r < s.rows; ++r) {
    for (int t = 0; t < tokens; ++t) sums[t] = _mm256_setzero_ps();
    for (int64_t g = 0; g < s.groups; ++g) {
      // Decode
      const __m256i codes = load8(s.codes[r] + 8 * g);
      const __m256 even = decode_low(codes), odd = decode_high(codes);
      const int64_t at = g / 4 * s.scale_tile + g % 4 * s.scale_step;
      const __m256 scale = decode_scales(_mm256_set1_epi32(s.scales[r][at]));
      // Multiply
      for (int t = 0; t < tokens; ++t) {
        const float* from = x[t] + g * kGroup;
        const __m256 sum = _mm256_add_ps(_mm256_mul_ps(even, _mm256_loadu_ps(from)),
                                         _mm256_mul_ps(odd, _mm256_loadu_ps(from + 8)));
        sums[t] = _mm256_add_ps(sums[t], _mm256_mul_ps(scale, sum));
      }
    }
    for (int t = 0; t < tokens; ++t) {
      float lanes[8];
      _mm256_storeu_ps(lanes, sums[t]);
      out[t * kStripRows + r] = sum_lanes(lanes);
    }
  }
}

}  // namespace

const MoeStrips kMoeStripsAvx2 = {multiply_sparse, multiply_dense};

}  // namespace twofour
