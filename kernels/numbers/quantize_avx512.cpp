#include <immintrin.h>

#include <cstdint>

#include "kernels/numbers/quantize_numbers.h"

// This file is compiled for AVX-512 F, BW, VL and DQ. AVX-512 F includes FMA, so the code relies on
// -ffp-contract=off. Everything here has internal linkage, including every function that is instantiated from
// it.

namespace twofour {
namespace {

/// The vectors of quantize_vector.h, quantize_sweep.h and quantize_numbers.h: sixteen floats or integers.
struct Avx512 {
  using F = float __attribute__((vector_size(64)));
  using I = int32_t __attribute__((vector_size(64)));
  using D = double __attribute__((vector_size(64)));
  using M = __mmask16;
  static constexpr int kLanes = 16, kDoubles = 8;
  static constexpr uint32_t kAllBits = 0xFFFF;

  [[gnu::always_inline]] static __m512i raw(I x) { return reinterpret_cast<__m512i>(x); }
  [[gnu::always_inline]] static I ints(__m512i x) { return reinterpret_cast<I>(x); }
  [[gnu::always_inline]] static F as_float(I x) { return reinterpret_cast<F>(x); }
  [[gnu::always_inline]] static I as_int(F x) { return reinterpret_cast<I>(x); }
  [[gnu::always_inline]] static F all(float x) { return _mm512_set1_ps(x); }
  [[gnu::always_inline]] static I all(int x) { return ints(_mm512_set1_epi32(x)); }

  // If one operand is NaN, minimum and maximum return the second operand.
  [[gnu::always_inline]] static F min(F a, F b) { return _mm512_min_ps(a, b); }
  [[gnu::always_inline]] static F max(F a, F b) { return _mm512_max_ps(a, b); }
  [[gnu::always_inline]] static D max(D a, D b) { return _mm512_max_pd(a, b); }
  [[gnu::always_inline]] static I min(I a, I b) { return ints(_mm512_min_epi32(raw(a), raw(b))); }
  [[gnu::always_inline]] static I max(I a, I b) { return ints(_mm512_max_epi32(raw(a), raw(b))); }
  [[gnu::always_inline]] static D magnitude(D x) { return _mm512_abs_pd(x); }

  // Compare
  [[gnu::always_inline]] static M less(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
  [[gnu::always_inline]] static M less_equal(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_LE_OQ); }
  [[gnu::always_inline]] static M equal(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
  [[gnu::always_inline]] static M equal(I a, I b) { return _mm512_cmpeq_epi32_mask(raw(a), raw(b)); }
  [[gnu::always_inline]] static M greater(I a, I b) { return _mm512_cmpgt_epi32_mask(raw(a), raw(b)); }
  [[gnu::always_inline]] static M both(M a, M b) { return a & b; }
  [[gnu::always_inline]] static M either(M a, M b) { return a | b; }
  [[gnu::always_inline]] static uint32_t bits(M m) { return m; }
  [[gnu::always_inline]] static bool any(M m) { return m != 0; }
  [[gnu::always_inline]] static F select(M m, F yes, F no) { return _mm512_mask_blend_ps(m, no, yes); }
  [[gnu::always_inline]] static I select(M m, I yes, I no) {
    return ints(_mm512_mask_blend_epi32(m, raw(no), raw(yes)));
  }
  [[gnu::always_inline]] static I or_if(M m, I x, int bits) {
    return ints(_mm512_mask_or_epi32(raw(x), m, raw(x), _mm512_set1_epi32(bits)));
  }

  /// Returns one of three values by size: below 2, below 4, or up to 8. Returns any of them for larger sizes
  /// and for NaN.
  [[gnu::always_inline]] static F by_exponent(F size, float below2, float below4, float below8) {
    return by_low_exponent(max(size, all(1.0f)), below2, below4, below8);
  }
  /// Does the same, but also returns any value for a size below 2^-13, because it depends on four bits of the
  /// exponent.
  [[gnu::always_inline]] static F by_low_exponent(F size, float below2, float below4, float below8) {
    const F table = {below4, below8, below2, below2, below2, below2, below2, below2,
                     below2, below2, below2, below2, below2, below2, below2, below2};
    return _mm512_permutexvar_ps(_mm512_srli_epi32(_mm512_castps_si512(size), 23), table);
  }
  /// Rounds once or twice.
  [[gnu::always_inline]] static F add_square(F sum, F x) { return _mm512_fmadd_ps(x, x, sum); }
  [[gnu::always_inline]] static F add_square_if(M m, F sum, F x) {
    return _mm512_mask3_fmadd_ps(x, x, sum, m);
  }

  // Load and store
  [[gnu::always_inline]] static F load(const float* p) { return _mm512_loadu_ps(p); }
  [[gnu::always_inline]] static void store(float* p, F x) { _mm512_storeu_ps(p, x); }
  [[gnu::always_inline]] static D load_doubles(const double* p) { return _mm512_loadu_pd(p); }
  [[gnu::always_inline]] static void store_doubles(double* p, D x) { _mm512_storeu_pd(p, x); }
  [[gnu::always_inline]] static D load_as_doubles(const float* p) {
    return _mm512_cvtps_pd(_mm256_loadu_ps(p));
  }
  [[gnu::always_inline]] static I load_u16(const uint8_t* p) {
    return ints(_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))));
  }
  [[gnu::always_inline]] static I load_u8(const uint8_t* p) {
    return ints(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
  }
  [[gnu::always_inline]] static F gather(const float* table, I index) {
    return _mm512_i32gather_ps(raw(index), table, 4);
  }
  /// Looks up bytes in a table that has three spare bytes at its end.
  [[gnu::always_inline]] static I gather_bytes(const uint8_t* table, I index) {
    return ints(_mm512_i32gather_epi32(raw(index), table, 1)) & 0xFF;
  }
  [[gnu::always_inline]] static void store_u16(uint8_t* p, I x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(raw(x)));
  }
  [[gnu::always_inline]] static void store_bytes(uint8_t* p, I x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(raw(x)));
  }
  /// Stores low[0], high[0], low[1], ...
  [[gnu::always_inline]] static void store_interleaved(uint8_t* p, I low, I high) {
    const __m512i first = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const __m512i second = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    _mm512_storeu_si512(p, _mm512_permutex2var_epi32(raw(low), first, raw(high)));
    _mm512_storeu_si512(p + 64, _mm512_permutex2var_epi32(raw(low), second, raw(high)));
  }

  // Quads of four neighbours, four in a register
  /// Lanes 4i .. 4i + 3 from p + 64 i.
  [[gnu::always_inline]] static F load_quads(const float* p) {
    F x = _mm512_castps128_ps512(_mm_loadu_ps(p));
    x = _mm512_mask_broadcast_f32x4(x, 0x00F0, _mm_loadu_ps(p + 64));
    x = _mm512_mask_broadcast_f32x4(x, 0x0F00, _mm_loadu_ps(p + 128));
    return _mm512_mask_broadcast_f32x4(x, 0xF000, _mm_loadu_ps(p + 192));
  }
  [[gnu::always_inline]] static F unpack_low(F a, F b) { return _mm512_unpacklo_ps(a, b); }
  [[gnu::always_inline]] static F unpack_high(F a, F b) { return _mm512_unpackhi_ps(a, b); }
  [[gnu::always_inline]] static F unpack_low_pairs(F a, F b) { return _mm512_shuffle_ps(a, b, 0x44); }
  [[gnu::always_inline]] static F unpack_high_pairs(F a, F b) { return _mm512_shuffle_ps(a, b, 0xEE); }
  [[gnu::always_inline]] static I quads(int a, int b, int c, int d) {
    return ints(_mm512_setr4_epi32(a, b, c, d));
  }
  /// Lane i gets the value of lane i + places of its quad.
  template <int places>
  [[gnu::always_inline]] static I rotate_quads(I x) {
    return ints(_mm512_shuffle_epi32(raw(x), static_cast<_MM_PERM_ENUM>(places == 1   ? 0x39
                                                                        : places == 2 ? 0x4E
                                                                                      : 0x93)));
  }

  /// The values of sixteen codes, with their signs.
  [[gnu::always_inline]] static F e2m1_values(const uint8_t* codes) {
    const F values = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                      -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};
    const __m512i words = _mm512_castsi128_si512(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes)));
    const __m512i spread =
        _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1), words);
    const __m512i places = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28);
    // vpermps reads the four low bits of its index.
    return _mm512_permutexvar_ps(_mm512_srlv_epi32(spread, places), values);
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

const QuantizeOps kQuantizeAvx512 = kQuantizeOps<Avx512>;

}  // namespace twofour
