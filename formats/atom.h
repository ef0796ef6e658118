#pragma once
#include <cstdint>

#include "formats/e2m1.h"
#include "formats/hd.h"

namespace twofour {

/// a / b, rounded up. `a` is 0 or more, `b` above 0.
template <class A, class B>
TWOFOUR_HD constexpr auto ceil_div(A a, B b) {
  return (a + b - 1) / b;
}

/// Weights along K that share one block scale.
inline constexpr int kGroup = 16;

/// The content of a stored byte.
enum class ByteKind { kCodes, kMeta, kScale, kPadding };

/// Sixteen dense weights of one row: NVFP4 as checkpoints store it, 4.5 bits a weight.
struct DenseGroup {
  uint8_t codes[8];  ///< byte j: k = 2j in the low nibble, 2j + 1 in the high one
  uint8_t scale;     ///< E4M3 block scale
  static constexpr ByteKind kind(int byte) { return byte < 8 ? ByteKind::kCodes : ByteKind::kScale; }
};
static_assert(sizeof(DenseGroup) == 9, "16 weights in 9 bytes: 4.5 bits a weight");

/// Sixteen weights of one row pruned to 2:4.
struct SparseGroup {
  uint8_t comp[4];  ///< quad q keeps two E2M1 codes, the lower k in the low nibble
  uint8_t meta[2];  ///< 4 bits a quad, the even quad low: first | second << 2, first < second
  uint8_t scale;    ///< E4M3 block scale
  static constexpr ByteKind kind(int byte) {
    return byte < 4 ? ByteKind::kCodes : byte < 6 ? ByteKind::kMeta : ByteKind::kScale;
  }
};
static_assert(sizeof(SparseGroup) == 7, "16 weights in 7 bytes: 3.5 bits a weight");

/// Two kept codes of a quad and their places.
struct Quad24 {
  uint8_t comp;  ///< lower k in the low nibble
  uint8_t meta;  ///< first | second << 2
};

/// The 2:4 rule: the two largest magnitudes stay, on a tie the lower k. Kept codes are as stored; -0 counts
/// as zero and stays -0. `quad` holds four codes, the lowest k in the low nibble. All four share a block
/// scale, so the codes decide.
TWOFOUR_HD constexpr Quad24 select_2_4(unsigned quad) {
  int first = 0;
  for (int i = 1; i < 4; ++i) {
    if (((quad >> 4 * i) & 7u) > ((quad >> 4 * first) & 7u)) first = i;
  }
  int second = first == 0 ? 1 : 0;
  for (int i = second + 1; i < 4; ++i) {
    if (i != first && ((quad >> 4 * i) & 7u) > ((quad >> 4 * second) & 7u)) second = i;
  }
  const int low = first < second ? first : second, high = first < second ? second : first;
  return {static_cast<uint8_t>(((quad >> 4 * low) & 15u) | (((quad >> 4 * high) & 15u) << 4)),
          static_cast<uint8_t>(low | (high << 2))};
}

/// True if a tie decided which codes of a quad are kept: its second and third largest magnitudes are equal.
TWOFOUR_HD constexpr bool is_tied_2_4(unsigned quad) {
  const Quad24 kept = select_2_4(quad);
  const unsigned a = kept.comp & 7u, b = (kept.comp >> 4) & 7u, weakest = a < b ? a : b;
  for (int i = 0; i < 4; ++i) {
    const bool is_kept = i == (kept.meta & 3) || i == (kept.meta >> 2);
    if (!is_kept && ((quad >> 4 * i) & 7u) == weakest) return true;
  }
  return false;
}

/// Metadata nibbles with first < second: 4, 8, 9, C, D, E. The hardware leaves the rest undefined.
TWOFOUR_HD constexpr bool is_legal_meta(unsigned nibble) { return (nibble & 3u) < ((nibble >> 2) & 3u); }

/// Four dense codes from two kept ones; dropped codes are 0x0.
TWOFOUR_HD constexpr unsigned expand_2_4(Quad24 kept) {
  return ((kept.comp & 15u) << 4 * (kept.meta & 3)) |
         (unsigned{kept.comp} >> 4 << 4 * ((kept.meta >> 2) & 3));
}

/// Energy of the two codes in a byte: the sum of their squared halves, 0 .. 288.
TWOFOUR_HD constexpr int pair_energy(unsigned byte) {
  const int low = e2m1_halves(byte & 7u), high = e2m1_halves((byte >> 4) & 7u);
  return low * low + high * high;
}

/// The 4:8-paired rule: of the four aligned pairs of eight codes along K, the two with the most energy stay,
/// on a tie the lower k. Kept pairs are as stored, zeros included. `octet` holds eight codes, the lowest k in
/// the low nibble, so a pair is a byte. Returns which pairs stay, one bit each. FP4 sparse tensor cores take
/// this pattern. Source: PTX ISA, mma.sp::ordered_metadata, kind::mxf4nvf4.
TWOFOUR_HD constexpr unsigned select_4_8(uint32_t octet) {
  unsigned kept = 0;
  for (int i = 0; i < 4; ++i) {
    int stronger = 0;
    for (int j = 0; j < 4; ++j) {
      const int a = pair_energy(octet >> 8 * i), b = pair_energy(octet >> 8 * j);
      stronger += b > a || (b == a && j < i);
    }
    if (stronger < 2) kept |= 1u << i;
  }
  return kept;
}

/// True if a tie decided which pairs of an octet are kept: its second and third largest energies are equal.
TWOFOUR_HD constexpr bool is_tied_4_8(uint32_t octet) {
  const unsigned kept = select_4_8(octet);
  for (int i = 0; i < 4; ++i) {
    for (int j = 0; j < 4; ++j) {
      const bool split = ((kept >> i) & 1u) != 0 && ((kept >> j) & 1u) == 0;
      if (split && pair_energy(octet >> 8 * i) == pair_energy(octet >> 8 * j)) return true;
    }
  }
  return false;
}

/// Eight codes with 0x0 in the pairs that `kept` does not name.
TWOFOUR_HD constexpr uint32_t mask_4_8(uint32_t octet, unsigned kept) {
  uint32_t mask = 0;
  for (int i = 0; i < 4; ++i) mask |= (kept >> i) & 1u ? 0xFFu << 8 * i : 0u;
  return octet & mask;
}

TWOFOUR_HD constexpr SparseGroup prune(const DenseGroup& dense) {
  SparseGroup sparse{};
  for (int q = 0; q < 4; ++q) {
    const Quad24 kept = select_2_4(dense.codes[2 * q] | (unsigned{dense.codes[2 * q + 1]} << 8));
    sparse.comp[q] = kept.comp;
    sparse.meta[q / 2] = static_cast<uint8_t>(sparse.meta[q / 2] | (kept.meta << 4 * (q % 2)));
  }
  sparse.scale = dense.scale;
  return sparse;
}

TWOFOUR_HD constexpr DenseGroup expand(const SparseGroup& sparse) {
  DenseGroup dense{};
  for (int q = 0; q < 4; ++q) {
    const auto meta = static_cast<uint8_t>((sparse.meta[q / 2] >> 4 * (q % 2)) & 15);
    const unsigned codes = expand_2_4({sparse.comp[q], meta});
    dense.codes[2 * q] = static_cast<uint8_t>(codes);
    dense.codes[2 * q + 1] = static_cast<uint8_t>(codes >> 8);
  }
  dense.scale = sparse.scale;
  return dense;
}

}  // namespace twofour
