#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "formats/layouts/layout.h"
#include "lib/recipe/selection/output_matrix.h"
#include "lib/source/checkpoint/checkpoint.h"
#include "lib/source/linears/linears.h"
#include "lib/write/plan/transformation.h"

namespace twofour {

/// Global scales of a target, as multipliers. `folded` has one scale per expert, [E]. The others have one
/// scale per source of each expert, [E][sources_per_expert].
struct OutputScales {
  std::vector<uint32_t> raw_bits;  ///< float32 bits as the source stores them
  std::vector<float> own;
  std::vector<float> folded;  ///< the larger of gate and up, which the artifact stores
  /// True for sources that are quantized when they are read, so that only the work finds their global scale.
  /// Either all sources of an expert are computed, or none is. Their `raw_bits` are 0, their `own` and
  /// `folded` are 1. An empty list means that no source is computed.
  std::vector<bool> computed = {};
  bool is_computed(size_t source) const { return !computed.empty() && computed[source]; }
};

/// The division of a target's experts into pieces that fit into the promised memory. Pieces are whole
/// experts, except for giant experts.
struct Tiling {
  int64_t k_step;      ///< number of inputs of a piece
  int64_t row_step;    ///< number of stored rows of a piece
  int64_t strip_rows;  ///< number of rows of a module that are read in one go
  uint64_t bytes;      ///< size of a worker's buffers, in bytes
};

/// A matrix with all its experts in one of the layouts. It has a tensor for each part of the layout, and then
/// a tensor with the global scales.
class LayoutMatrix : public Transformation {
 public:
  /// `fold_name` is the setting that allows a fold with a larger error. Messages name it. It is empty if the
  /// rule has that setting.
  LayoutMatrix(OutputMatrix target, std::string layout, OutputScales scales, Tiling tiling,
               std::string fold_name, std::vector<size_t> tensors, std::vector<size_t> global_scales);

  const OutputMatrix target;
  const std::string layout;
  const OutputScales scales;
  const Tiling tiling;
  /// The largest relative norm of the change that a fold may make to a matrix of an expert. Larger changes
  /// are refused.
  static constexpr double kMostFoldError = 0.1;
  const std::string fold_name;
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

  /// True if the sources of an expert are quantized when they are read.
  bool is_computed(int64_t expert) const {
    return scales.is_computed(static_cast<size_t>(expert) * target.sources_per_expert);
  }

 private:
  std::vector<size_t> tensors_;        ///< the source's tensors from which the matrix is made
  std::vector<size_t> global_scales_;  ///< the source's tensors with the global scales, one for each source
                                       ///< of the target
  int part_count_ = 0;                 ///< number of the layout's parts, without the tensor of global scales
};

/// The result of the work on a LayoutMatrix: figures for the whole matrix, and hashes of the codes and block
/// scales of each source.
struct LayoutResult {
  Quality quality;
  struct Slice {
    Hash128 codes, scales;
  };
  std::vector<Slice> slices;  ///< one for each source of the target
  /// The bits of the global scale that the work found for each source, or 0. Empty if the work found none.
  std::vector<uint32_t> global_scales = {};
  /// The result of choosing the weights of each source by statistics or masks, as Checkpoint::computed_result
  /// returns it, or null. Empty if no source has a result.
  std::vector<Json> solved = {};
  /// The total change that choosing weights made. Empty unless weights of all sources were chosen.
  std::optional<EncodedResult> chosen() const;
  /// Sets `solved` for all sources. Call this after their rows were read.
  void take_solved(const Checkpoint& source, const OutputMatrix& target);
  Json to_json() const;
  static LayoutResult from_json(const Json& json);
};

/// The global scale of source `source` of a matrix, from a checkpoint that computes it. Throws Error if its
/// weights cannot be quantized.
SourceScale read_computed_scale(const Checkpoint& checkpoint, const LayoutMatrix& matrix, size_t source);

/// The part of an expert that is packed in one go. It has inputs [k0, k0 + k) of stored rows [r0, r0 + rows).
/// It is the whole expert, except for giant experts. A piece is a contiguous range of bytes in each part of
/// the layout. The layout's map describes it as a separate matrix.
struct Piece {
  int64_t k0, k, r0, rows;
};

/// The pieces of an expert in the order of their bytes.
std::vector<Piece> pieces_of(const OutputMatrix& target, const Tiling& tiling);

/// The piece that is the whole expert.
Piece whole_piece(const OutputMatrix& target);

/// The shape of a piece as a separate matrix.
Shape piece_shape(const OutputMatrix& target, const Piece& piece);

/// The rows of a source that belong to a piece. Their `n0` counts from the beginning of the piece.
SourceRows piece_rows(const SourceRows& source, const OutputMatrix& target, const Piece& piece);

/// The offset in bytes of a piece in part `p` of its expert.
int64_t piece_offset(const std::string& layout, int p, const OutputMatrix& target, const Piece& piece);

/// The size in bytes of a piece in part `p`.
int64_t piece_bytes(const std::string& layout, int p, const OutputMatrix& target, const Piece& piece);

/// Cuts the experts of a target into pieces. `k_outer` is true if its modules are stacks whose dimension
/// before the last is K.
Tiling make_tiling(const OutputMatrix& target, const std::string& layout, bool k_outer,
                   const MemoryLimits& limits);

}  // namespace twofour
