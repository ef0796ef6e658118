#include <immintrin.h>

#include "kernels/pack/prune_pack_ops.h"
#include "kernels/pack/prune_words.h"

// This file is compiled for AVX2.

namespace twofour {
namespace {

using Words = uint64_t __attribute__((vector_size(32)));

[[gnu::always_inline]] inline Words words(__m256i x) { return reinterpret_cast<Words>(x); }
[[gnu::always_inline]] inline __m256i bytes(Words x) { return reinterpret_cast<__m256i>(x); }

/// The squares, in halves, of the low or of the high codes of each byte.
[[gnu::always_inline]] inline __m256i squares(__m256i nibbles) {
  const __m128i table = _mm_load_si128(reinterpret_cast<const __m128i*>(kSquares.entry));
  return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), nibbles);
}
[[gnu::always_inline]] inline __m256i low_squares(__m256i x) {
  return squares(_mm256_and_si256(x, _mm256_set1_epi8(15)));
}
[[gnu::always_inline]] inline __m256i high_squares(__m256i x) {
  return squares(_mm256_and_si256(_mm256_srli_epi16(x, 4), _mm256_set1_epi8(15)));
}

/// The sums of squares of each word.
[[gnu::always_inline]] inline __m256i energy_of(__m256i low, __m256i high) {
  const __m256i zero = _mm256_setzero_si256();
  return _mm256_add_epi64(_mm256_sad_epu8(low, zero), _mm256_sad_epu8(high, zero));
}

template <bool pairs>
[[gnu::always_inline]] inline void prune_run(const uint8_t* codes, int64_t count, uint8_t* out,
                                             uint64_t* energy, uint64_t* kept_energy, uint64_t& tied) {
  Words ties = {0, 0, 0, 0};
  const __m256i zero = _mm256_setzero_si256();
  for (int64_t i = 0; i < count; i += 4) {
    // Load
    const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + 8 * i));
    const __m256i low = low_squares(x), high = high_squares(x);
    // Select
    __m256i mask;
    if constexpr (pairs) {
      const __m256i first =
          _mm256_add_epi16(_mm256_unpacklo_epi8(low, zero), _mm256_unpacklo_epi8(high, zero));
      const __m256i second =
          _mm256_add_epi16(_mm256_unpackhi_epi8(low, zero), _mm256_unpackhi_epi8(high, zero));
      mask = _mm256_packs_epi16(bytes(keep_two<16>(words(first), ties)),
                                bytes(keep_two<16>(words(second), ties)));
    } else {
      mask = bytes(keep_two<4>(words(_mm256_and_si256(x, _mm256_set1_epi8(0x77))), ties));
    }
    const __m256i kept = _mm256_and_si256(x, mask);
    // Store
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + 8 * i), kept);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(energy + i), energy_of(low, high));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(kept_energy + i),
                        energy_of(low_squares(kept), high_squares(kept)));
  }
  tied += ties[0] + ties[1] + ties[2] + ties[3];
}

}  // namespace

void prune_words_avx2(bool pairs, const uint8_t* codes, int64_t count, uint8_t* out, uint64_t* energy,
                      uint64_t* kept_energy, uint64_t& tied) {
  if (pairs) {
    prune_run<true>(codes, count, out, energy, kept_energy, tied);
  } else {
    prune_run<false>(codes, count, out, energy, kept_energy, tied);
  }
}

}  // namespace twofour
