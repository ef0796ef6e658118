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

/// The change of a source's block scales when its global scale is folded into a larger one. Exact integers.
struct FoldLoss {
  /// Sums of squared code halves by block-scale byte.
  std::array<uint64_t, 256> energy{};
  uint64_t changed = 0;  ///< block scales that are no longer exactly s * g_own / g
  FoldLoss& operator+=(const FoldLoss& other);
};

/// The result of packing one source of one expert.
struct SourceResult {
  PruneStats stats;
  std::unique_ptr<FoldLoss> fold;   ///< if its global scale is folded
  Hash128 codes_hash, scales_hash;  ///< of the expert's slice; set if the whole slice was read
  int64_t first_bad_row = -1, first_bad_group = -1;
  uint8_t first_bad_scale = 0;
};

/// Block scales after folding: e4m3_rne(s * (own / folded)) in float32.
std::array<uint8_t, 256> fold_table(float own, float folded);

/// Reads experts of matrices from the source by bounded reads and packs them. Reuses its buffers for each
/// expert. Use one per thread.
class ExpertPacker {
 public:
  explicit ExpertPacker(const Worker& worker) : source_(worker.source), isa_(worker.isa) {}

  /// Packs a piece of expert `e`; adds to `results`, which has one entry for each source of the expert.
  void pack(const LayoutMatrix& matrix, int64_t e, const Piece& piece, std::span<SourceResult> results);
  /// Only checks for bad block scales.
  void check(const LayoutMatrix& matrix, int64_t e, std::span<SourceResult> results);
  /// Only hashes the expert's slices.
  void hash(const LayoutMatrix& matrix, int64_t e, std::span<SourceResult> results);

  /// The packed piece: part p of it, valid until the next call.
  std::span<const uint8_t> part(int p) const { return parts_[static_cast<size_t>(p)]; }
  /// Bytes read from the source since construction.
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
  /// Rows of a row block that belong to a source, and their first row in the piece.
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
