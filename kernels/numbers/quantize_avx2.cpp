#include <immintrin.h>

#include <cstdint>

#include "kernels/numbers/quantize_numbers.h"

// This file is compiled for AVX2, without FMA. Everything here has internal linkage, including every function
// that is instantiated from it.

namespace twofour {
namespace {

/// The vectors of quantize_vector.h, quantize_sweep.h and quantize_numbers.h: eight floats or integers.
struct Avx2 {
  using F = float __attribute__((vector_size(32)));
  using I = int32_t __attribute__((vector_size(32)));
  using D = double __attribute__((vector_size(32)));
  using M = I;  ///< all bits of a lane, or none
  static constexpr int kLanes = 8, kDoubles = 4;
  static constexpr uint32_t kAllBits = 0xFF;

  [[gnu::always_inline]] static __m256i raw(I x) { return reinterpret_cast<__m256i>(x); }
  [[gnu::always_inline]] static I ints(__m256i x) { return reinterpret_cast<I>(x); }
  [[gnu::always_inline]] static F as_float(I x) { return reinterpret_cast<F>(x); }
  [[gnu::always_inline]] static I as_int(F x) { return reinterpret_cast<I>(x); }
  [[gnu::always_inline]] static F all(float x) { return _mm256_set1_ps(x); }
  [[gnu::always_inline]] static I all(int x) { return ints(_mm256_set1_epi32(x)); }

  // If one operand is NaN, minimum and maximum return the second operand.
  [[gnu::always_inline]] static F min(F a, F b) { return _mm256_min_ps(a, b); }
  [[gnu::always_inline]] static F max(F a, F b) { return _mm256_max_ps(a, b); }
  [[gnu::always_inline]] static D max(D a, D b) { return _mm256_max_pd(a, b); }
  [[gnu::always_inline]] static I min(I a, I b) { return ints(_mm256_min_epi32(raw(a), raw(b))); }
  [[gnu::always_inline]] static I max(I a, I b) { return ints(_mm256_max_epi32(raw(a), raw(b))); }
  [[gnu::always_inline]] static D magnitude(D x) { return _mm256_andnot_pd(_mm256_set1_pd(-0.0), x); }

  // Compare
  [[gnu::always_inline]] static M less(F a, F b) { return as_int(_mm256_cmp_ps(a, b, _CMP_LT_OQ)); }
  [[gnu::always_inline]] static M less_equal(F a, F b) { return as_int(_mm256_cmp_ps(a, b, _CMP_LE_OQ)); }
  [[gnu::always_inline]] static M equal(F a, F b) { return as_int(_mm256_cmp_ps(a, b, _CMP_EQ_OQ)); }
  [[gnu::always_inline]] static M equal(I a, I b) { return ints(_mm256_cmpeq_epi32(raw(a), raw(b))); }
  [[gnu::always_inline]] static M greater(I a, I b) { return ints(_mm256_cmpgt_epi32(raw(a), raw(b))); }
  [[gnu::always_inline]] static M both(M a, M b) { return a & b; }
  [[gnu::always_inline]] static M either(M a, M b) { return a | b; }
  [[gnu::always_inline]] static uint32_t bits(M m) {
    return static_cast<uint32_t>(_mm256_movemask_ps(as_float(m)));
  }
  [[gnu::always_inline]] static bool any(M m) { return bits(m) != 0; }
  [[gnu::always_inline]] static F select(M m, F yes, F no) { return _mm256_blendv_ps(no, yes, as_float(m)); }
  [[gnu::always_inline]] static I select(M m, I yes, I no) {
    return as_int(select(m, as_float(yes), as_float(no)));
  }
  [[gnu::always_inline]] static I or_if(M m, I x, int bits) { return x | (m & bits); }

  /// Returns one of three values by size: below 2, below 4, or up to 8. Returns any of them for larger sizes
  /// and for NaN.
  [[gnu::always_inline]] static F by_exponent(F size, float below2, float below4, float below8) {
    return by_low_exponent(max(size, all(1.0f)), below2, below4, below8);
  }
  /// Does the same, but also returns any value for a size below 2^-5, because it depends on three bits of the
  /// exponent.
  [[gnu::always_inline]] static F by_low_exponent(F size, float below2, float below4, float below8) {
    const F table = {below4, below8, below2, below2, below2, below2, below2, below2};
    return _mm256_permutevar8x32_ps(table, _mm256_srli_epi32(_mm256_castps_si256(size), 23));
  }
  [[gnu::always_inline]] static F add_square(F sum, F x) { return sum + x * x; }
  [[gnu::always_inline]] static F add_square_if(M m, F sum, F x) { return sum + as_float(as_int(x * x) & m); }

  // Load and store
  [[gnu::always_inline]] static F load(const float* p) { return _mm256_loadu_ps(p); }
  [[gnu::always_inline]] static void store(float* p, F x) { _mm256_storeu_ps(p, x); }
  [[gnu::always_inline]] static D load_doubles(const double* p) { return _mm256_loadu_pd(p); }
  [[gnu::always_inline]] static void store_doubles(double* p, D x) { _mm256_storeu_pd(p, x); }
  [[gnu::always_inline]] static D load_as_doubles(const float* p) { return _mm256_cvtps_pd(_mm_loadu_ps(p)); }
  [[gnu::always_inline]] static I load_u16(const uint8_t* p) {
    return ints(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
  }
  [[gnu::always_inline]] static I load_u8(const uint8_t* p) {
    return ints(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
  }
  [[gnu::always_inline]] static F gather(const float* table, I index) {
    return _mm256_i32gather_ps(table, raw(index), 4);
  }
  /// Looks up bytes in a table that has three spare bytes at its end.
  [[gnu::always_inline]] static I gather_bytes(const uint8_t* table, I index) {
    return ints(_mm256_i32gather_epi32(reinterpret_cast<const int*>(table), raw(index), 1)) & 0xFF;
  }
  /// Stores numbers below 2^16.
  [[gnu::always_inline]] static void store_u16(uint8_t* p, I x) {
    const __m256i pairs = _mm256_permute4x64_epi64(_mm256_packus_epi32(raw(x), raw(x)), 0x08);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(pairs));
  }
  [[gnu::always_inline]] static void store_bytes(uint8_t* p, I x) {
    const __m256i pairs = _mm256_packus_epi32(raw(x), raw(x)), bytes = _mm256_packus_epi16(pairs, pairs);
    const __m128i low = _mm256_castsi256_si128(bytes), high = _mm256_extracti128_si256(bytes, 1);
    _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_unpacklo_epi32(low, high));
  }
  /// Stores low[0], high[0], low[1], ...
  [[gnu::always_inline]] static void store_interleaved(uint8_t* p, I low, I high) {
    const __m256i a = _mm256_unpacklo_epi32(raw(low), raw(high)),
                  b = _mm256_unpackhi_epi32(raw(low), raw(high));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute2x128_si256(a, b, 0x20));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 32), _mm256_permute2x128_si256(a, b, 0x31));
  }

  // Quads of four neighbours, two in a register
  /// Lanes 4i .. 4i + 3 from p + 64 i.
  [[gnu::always_inline]] static F load_quads(const float* p) {
    return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(p)), _mm_loadu_ps(p + 64), 1);
  }
  [[gnu::always_inline]] static F unpack_low(F a, F b) { return _mm256_unpacklo_ps(a, b); }
  [[gnu::always_inline]] static F unpack_high(F a, F b) { return _mm256_unpackhi_ps(a, b); }
  [[gnu::always_inline]] static F unpack_low_pairs(F a, F b) { return _mm256_shuffle_ps(a, b, 0x44); }
  [[gnu::always_inline]] static F unpack_high_pairs(F a, F b) { return _mm256_shuffle_ps(a, b, 0xEE); }
  [[gnu::always_inline]] static I quads(int a, int b, int c, int d) {
    return ints(_mm256_setr_epi32(a, b, c, d, a, b, c, d));
  }
  /// Lane i gets the value of lane i + places of its quad.
  template <int places>
  [[gnu::always_inline]] static I rotate_quads(I x) {
    return ints(_mm256_shuffle_epi32(raw(x), places == 1 ? 0x39 : places == 2 ? 0x4E : 0x93));
  }

  /// The values of eight codes, with their signs.
  [[gnu::always_inline]] static F e2m1_values(const uint8_t* codes) {
    const F values = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
    const __m256i word = _mm256_broadcastd_epi32(_mm_loadu_si32(codes));
    const __m256i code = _mm256_srlv_epi32(word, _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
    const I sign = ints(_mm256_slli_epi32(code, 28)) & INT32_MIN;
    return as_float(as_int(_mm256_permutevar8x32_ps(values, code)) | sign);
  }

  /// Looks up 32 codes in a table of 16 bytes. A byte holds two codes, the lower first.
  [[gnu::always_inline]] static void look_up_codes(const uint8_t* table, const uint8_t* codes, uint8_t* out) {
    const __m256i bytes = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
    const __m256i nibbles =
        _mm256_and_si256(_mm256_or_si256(bytes, _mm256_slli_epi16(bytes, 4)), _mm256_set1_epi8(15));
    const __m256i both =
        _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), _mm256_shuffle_epi8(both, nibbles));
  }
};

}  // namespace

const QuantizeOps kQuantizeAvx2 = kQuantizeOps<Avx2>;

}  // namespace twofour
