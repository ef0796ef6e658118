#pragma once
#include <cstdint>
#include <span>

#include "formats/layouts/layout.h"
#include "kernels/device/isa.h"

namespace twofour {

/// Rows of one dense NVFP4 matrix, as checkpoints store them. K is contiguous.
struct DenseRows {
  const uint8_t* codes;   ///< [n, k/2] E2M1, the even k in the low nibble
  const uint8_t* scales;  ///< [n, k/16] E4M3
  int64_t codes_pitch;    ///< bytes from one row of codes to the next
  int64_t scales_pitch;
  int64_t n;
  int64_t k;  ///< a multiple of 16
};

/// Statistics of pruning some rows. They are integers, so sums are the same in any order and on any
/// instruction set.
struct PruneStats {
  uint64_t quads = 0;
  uint64_t tied = 0;        ///< quads whose second and third largest magnitudes are equal (is_tied_2_4)
  uint64_t bad_scales = 0;  ///< number of block-scale bytes that are NaN or negative
  /// Sums of (e2m1(code) * e4m3(scale))^2, over all weights and over the kept weights. The unit is 2^-20,
  /// because codes count in halves and scales in 2^-9. Bad scales count as zero.
  unsigned __int128 energy = 0;
  unsigned __int128 kept_energy = 0;
  PruneStats& operator+=(const PruneStats& other);
  bool operator==(const PruneStats&) const = default;
};

/// The way of storing results. `streaming` writes around the cache. Use it for a destination that is larger
/// than the cache and not read soon.
enum class Stores { cached, streaming };

/// Prunes `rows` to 2:4 and writes them to rows [n0, n0 + rows.n) of one expert (`shape.e == 1`, `shape.k ==
/// rows.k`), in the places of `Layout`. `parts[p]` is part p of the expert. For any shape, the bytes equal
/// those from packing `prune(DenseGroup)` with the layout's map. Stops the program on shapes that disagree.
template <class Layout>
PruneStats prune_pack(const DenseRows& rows, Shape shape, int64_t n0, std::span<uint8_t* const> parts,
                      Isa isa = best_isa(), Stores stores = Stores::cached);

/// Does the same through the layout's map, byte by byte. This is the reference.
template <class Layout>
PruneStats prune_pack_reference(const DenseRows& rows, Shape shape, int64_t n0,
                                std::span<uint8_t* const> parts);

}  // namespace twofour
