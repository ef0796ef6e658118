#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "formats/layouts/layout.h"
#include "lib/recipe/selection/output_matrix.h"
#include "lib/source/checkpoint/checkpoint.h"
#include "lib/source/checkpoint/linears.h"
#include "lib/write/plan/transformation.h"

namespace twofour {

/// Global scales of a target, as multipliers. All are [E][sources_per_expert] but `folded`, which is [E].
struct OutputScales {
  std::vector<uint32_t> raw_bits;  ///< float32 bits as the source has them
  std::vector<float> own;
  std::vector<float> folded;  ///< the larger of gate and up: what the artifact stores
  /// Sources whose global scale only the work finds, since they are quantized as they are read: all of an
  /// expert or none. Their `raw_bits` are 0 here, `own` and `folded` 1. Empty: none.
  std::vector<bool> computed = {};
  bool is_computed(size_t source) const { return !computed.empty() && computed[source]; }
};

/// How a target's experts are cut into pieces that fit the memory promised.
struct Tiling {
  int64_t k_step;      ///< inputs of a piece
  int64_t row_step;    ///< stored rows of a piece; all inputs and rows except for giant experts
  int64_t strip_rows;  ///< rows of a module read at once
  uint64_t bytes;      ///< a worker's buffers
};

/// A matrix with all its experts in one of the layouts: a tensor for each part of the layout, then global
/// scales.
class LayoutMatrix : public Transformation {
 public:
  /// `fold_word`: the setting that allows a fold with a larger error, for messages; empty if the rule has it.
  LayoutMatrix(OutputMatrix target, std::string layout, OutputScales scales, Tiling tiling,
               std::string fold_word, std::vector<size_t> tensors, std::vector<size_t> global_scales);

  const OutputMatrix target;
  const std::string layout;
  const OutputScales scales;
  const Tiling tiling;
  /// Largest relative norm by which a fold may change a matrix of an expert; larger changes are refused.
  static constexpr double kMostFoldError = 0.1;
  const std::string fold_word;
  int part_count() const { return part_count_; }

  std::string name(const Checkpoint&) const override { return target.name; }
  std::vector<TensorInfo> outputs(const Checkpoint& source) const override;
  std::vector<size_t> sources() const override { return tensors_; }
  std::vector<Unit> units(const Checkpoint& source) const override;
  uint64_t worker_bytes() const override { return tiling.bytes; }
  std::string decision(int) const override { return layout; }
  std::string origin(const Checkpoint&, int) const override { return target.block; }
  std::unique_ptr<Work> begin() const override;
  Json prove(Proof& proof) const override;
  Json empty_result() const override;
  void check_result(const Json& result) const override;
  Json entries(const Checkpoint& source, const Json& result, const std::vector<Json>& tensors) const override;
  std::string content(const Json& result, std::span<const Hash128> outputs) const override;
  std::vector<StoredScale> stored_scales() const override;
  std::vector<ModuleReport> report(const Checkpoint& source, const Json& result) const override;

  /// True if an expert's sources are quantized as they are read.
  bool is_computed(int64_t expert) const {
    return scales.is_computed(static_cast<size_t>(expert) * target.sources_per_expert);
  }

 private:
  std::vector<size_t> tensors_;        ///< of the source, that go into it
  std::vector<size_t> global_scales_;  ///< of the source, one for each source of the target
  int part_count_ = 0;                 ///< of the layout; the global scales are one more
};

/// The result of the work on a LayoutMatrix: figures of all, and hashes of each source's codes and block
/// scales.
struct LayoutResult {
  Quality quality;
  struct Slice {
    Hash128 codes, scales;
  };
  std::vector<Slice> slices;  ///< one a source of the target
  /// One for each source: bits of the global scales that the work found, 0 of others; empty if it found none.
  std::vector<uint32_t> global_scales = {};
  /// One for each source: the result of choosing weights by statistics or masks, as
  /// Checkpoint::computed_result; null for others. Empty: no source has one.
  std::vector<Json> solved = {};
  /// The total change by choosing weights; nothing unless weights of all sources were chosen.
  std::optional<EncodedResult> chosen() const;
  /// Takes `solved` of all sources, once their rows were read.
  void take_solved(const Checkpoint& source, const OutputMatrix& target);
  Json to_json() const;
  static LayoutResult from_json(const Json& json);
};

/// The computed global scale of source `source` of a matrix, from a checkpoint that computes it. Throws Error
/// if its weights cannot be quantized.
SourceScale read_computed_scale(const Checkpoint& checkpoint, const LayoutMatrix& matrix, size_t source);

/// The part of an expert that is packed at once: inputs [k0, k0 + k) of stored rows [r0, r0 + rows); all of
/// it except for giant experts. A piece is one run of bytes in each part, and the layout's map describes it
/// as a separate matrix.
struct Piece {
  int64_t k0, k, r0, rows;
};

/// The pieces of an expert in the order of their bytes.
std::vector<Piece> pieces_of(const OutputMatrix& target, const Tiling& tiling);

/// The whole expert as one piece.
Piece whole_piece(const OutputMatrix& target);

/// The shape of the piece as a separate matrix.
Shape piece_shape(const OutputMatrix& target, const Piece& piece);

/// The rows of a source that belong to a piece; `n0` counts in the piece.
SourceRows piece_rows(const SourceRows& source, const OutputMatrix& target, const Piece& piece);

/// Where the piece begins in part `p` of its expert.
int64_t piece_offset(const std::string& layout, int p, const OutputMatrix& target, const Piece& piece);

/// Bytes of the piece in part `p`.
int64_t piece_bytes(const std::string& layout, int p, const OutputMatrix& target, const Piece& piece);

/// Cuts a target's experts into pieces. `k_outer`: its modules are stacks with K along the dimension before
/// the last.
Tiling make_tiling(const OutputMatrix& target, const std::string& layout, bool k_outer,
                   const MemoryLimits& limits);

}  // namespace twofour
