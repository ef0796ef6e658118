#pragma once
#include <cstdint>

#include "formats/e2m1.h"
#include "formats/hd.h"

namespace twofour {

/// Returns a / b, rounded up. `a` is at least 0 and `b` is above 0.
template <class A, class B>
TWOFOUR_HD constexpr auto ceil_div(A a, B b) {
  return (a + b - 1) / b;
}

/// The number of weights along K that share one block scale.
inline constexpr int kGroup = 16;

/// The kind of data in a stored byte.
enum class ByteKind { kCodes, kMeta, kScale, kPadding };

/// Sixteen dense weights of one row in NVFP4, as checkpoints store them. A weight takes 4.5 bits.
struct DenseGroup {
  uint8_t codes[8];  ///< byte j has k = 2j in the low nibble and k = 2j + 1 in the high nibble
  uint8_t scale;     ///< E4M3 block scale
  static constexpr ByteKind kind(int byte) { return byte < 8 ? ByteKind::kCodes : ByteKind::kScale; }
};
static_assert(sizeof(DenseGroup) == 9, "16 weights in 9 bytes: 4.5 bits a weight");

/// Sixteen weights of one row pruned to 2:4.
struct SparseGroup {
  uint8_t comp[4];  ///< two kept E2M1 codes for each quad, the lower k in the low nibble
  uint8_t meta[2];  ///< 4 bits for each quad, the even quad low: first | second << 2, with first < second
  uint8_t scale;    ///< E4M3 block scale
  static constexpr ByteKind kind(int byte) {
    return byte < 4 ? ByteKind::kCodes : byte < 6 ? ByteKind::kMeta : ByteKind::kScale;
  }
};
static_assert(sizeof(SparseGroup) == 7, "16 weights in 7 bytes: 3.5 bits a weight");

/// The two kept codes of a quad and their positions.
struct Quad24 {
  uint8_t comp;  ///< the code of the lower k is in the low nibble
  uint8_t meta;  ///< first | second << 2
};

/// The 2:4 rule: keeps the two largest magnitudes of a quad. If two are equal, the lower k is kept. Kept
/// codes are unchanged; -0 counts as zero and stays -0. `quad` holds four codes, the lowest k in the low
/// nibble. All four codes share a block scale, so comparing the codes is enough.
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

/// True if a tie decided which codes of a quad are kept. This is so if the second and third largest
/// magnitudes are equal.
TWOFOUR_HD constexpr bool is_tied_2_4(unsigned quad) {
  const Quad24 kept = select_2_4(quad);
  const unsigned a = kept.comp & 7u, b = (kept.comp >> 4) & 7u, weakest = a < b ? a : b;
  for (int i = 0; i < 4; ++i) {
    const bool is_kept = i == (kept.meta & 3) || i == (kept.meta >> 2);
    if (!is_kept && ((quad >> 4 * i) & 7u) == weakest) return true;
  }
  return false;
}

/// True for metadata nibbles with first < second: 4, 8, 9, C, D and E. The hardware leaves the others
/// undefined.
TWOFOUR_HD constexpr bool is_legal_meta(unsigned nibble) { return (nibble & 3u) < ((nibble >> 2) & 3u); }

/// Returns the four dense codes of a quad. Dropped codes become 0x0.
TWOFOUR_HD constexpr unsigned expand_2_4(Quad24 kept) {
  return ((kept.comp & 15u) << 4 * (kept.meta & 3)) |
         (unsigned{kept.comp} >> 4 << 4 * ((kept.meta >> 2) & 3));
}

/// The energy of the two codes in a byte: the sum of the squares of their values in halves, 0 to 288.
TWOFOUR_HD constexpr int pair_energy(unsigned byte) {
  const int low = e2m1_halves(byte & 7u), high = e2m1_halves((byte >> 4) & 7u);
  return low * low + high * high;
}

/// The 4:8-paired rule: of the four aligned pairs in eight codes along K, keeps the two with the most energy.
/// If two are equal, the lower k is kept. Kept pairs are unchanged, including their zeros. `octet` holds
/// eight codes, the lowest k in the low nibble, so a pair is a byte. Returns the kept pairs, one bit for
/// each. FP4 sparse tensor cores read this pattern. Source: PTX ISA, mma.sp::ordered_metadata,
/// kind::mxf4nvf4.
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

/// True if a tie decided which pairs of an octet are kept. This is so if the second and third largest
/// energies are equal.
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

/// Returns the eight codes of an octet with 0x0 in each pair whose bit in `kept` is 0.
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
