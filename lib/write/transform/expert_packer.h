#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/device/isa.h"
#include "kernels/pack/prune_pack.h"
#include "lib/base/io/hash.h"
#include "lib/source/checkpoint/checkpoint.h"
#include "lib/write/methods/layout_matrix.h"

namespace twofour {

/// The change of a source's block scales if its global scale is folded into a larger one. The figures are
/// exact integers.
struct FoldLoss {
  /// The sum of (2 x)^2 over the values x of the codes of each block scale byte.
  std::array<uint64_t, 256> energy{};
  uint64_t changed = 0;  ///< number of block scales that are no longer exactly s * g_own / g
  FoldLoss& operator+=(const FoldLoss& other);
};

/// The result of packing one source of an expert.
struct SourceResult {
  PruneStats stats;
  std::unique_ptr<FoldLoss> fold;   ///< set if the source's global scale is folded
  Hash128 codes_hash, scales_hash;  ///< hashes of the expert's slice; set if the whole slice was read
  int64_t first_bad_row = -1, first_bad_group = -1;
  uint8_t first_bad_scale = 0;
};

/// The value of each block scale byte s after folding. It is s * (own / folded), computed in float32 and
/// rounded to the nearest E4M3, ties to even.
std::array<uint8_t, 256> fold_table(float own, float folded);

/// Reads experts of matrices from the source by bounded reads, and packs them. All experts share its buffers.
/// Each thread needs its own packer.
class ExpertPacker {
 public:
  explicit ExpertPacker(const Worker& worker) : source_(worker.source), isa_(worker.isa) {}

  /// Packs a piece of expert `e` and adds to `results`, which has one entry for each source of the expert.
  void pack(const LayoutMatrix& matrix, int64_t e, const Piece& piece, std::span<SourceResult> results);
  /// Only checks block scales.
  void check(const LayoutMatrix& matrix, int64_t e, std::span<SourceResult> results);
  /// Only hashes the expert's slices.
  void hash(const LayoutMatrix& matrix, int64_t e, std::span<SourceResult> results);

  /// Part p of the piece that was packed last. It is valid until the next call.
  std::span<const uint8_t> part(int p) const { return parts_[static_cast<size_t>(p)]; }
  /// The number of bytes read from the source since construction.
  uint64_t bytes_read() const { return bytes_read_; }

 private:
  struct RowBlock;
  struct Run;
  template <class F>
  void for_each_row_block(const LayoutMatrix& matrix, int64_t e, const Piece& piece,
                          std::span<SourceResult> results, F&& f);
  void prepare_parts(const LayoutMatrix& matrix, const Piece& piece);
  std::vector<Run> runs_of(const OutputMatrix& target, int64_t e, const Piece& piece) const;
  void load(const Nvfp4Linear& m, int64_t expert, RowBlock& row_block);
  SourceResult hash_computed(const Nvfp4Linear& m, const Tiling& tiling);
  void load_k_outer(const Nvfp4Linear& m, int64_t expert, const RowBlock& row_block, uint8_t* to);
  /// The rows of a source in a row block, and the index of the first row in the piece.
  static std::pair<DenseRows, int64_t> rows_of(const OutputMatrix& target, size_t source, const Piece& piece,
                                               const RowBlock& row_block);
  void pack_row_block(const LayoutMatrix& matrix, size_t source, const Piece& piece,
                      const RowBlock& row_block, SourceResult& result);
  uint8_t* buffer(std::vector<uint8_t>& b, size_t bytes);

  const Checkpoint& source_;
  const Isa isa_;
  std::vector<uint8_t> rows_, stored_, scales_, folded_;
  std::vector<std::vector<uint8_t>> storage_;
  std::vector<std::span<const uint8_t>> parts_;
  std::vector<uint8_t*> part_pointers_;
  uint64_t bytes_read_ = 0;
};

}  // namespace twofour
