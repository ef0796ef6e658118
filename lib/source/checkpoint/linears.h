#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "formats/naming.h"
#include "formats/weight_dialect.h"
#include "lib/base/findings/problems.h"
#include "lib/source/checkpoint/checkpoint.h"

namespace twofour {

/// One linear layer, or a stack of them, [E, N, K], in any number format that twofour reads. Tensors are
/// positions in Checkpoint::tensors().
struct Linear {
  std::string name;  ///< without the suffix of its format: "model.layers.0.mlp.down_proj"
  WeightFormat format;
  size_t weight;                  ///< values or codes
  std::optional<size_t> scale{};  ///< FP8 scales; block scales of MXFP4 and NVFP4; group scales of INT4
  std::optional<size_t> global_scale{}, input_scale{};
  // INT4 only. A weight is (code - zero point) * scale. Without stored zero points all are 8.
  std::optional<size_t> zero_points{};
  std::optional<size_t> group_index{};  ///< [K], the group of each input; all -1: in order
  std::optional<size_t> shape{};        ///< [2], N and K
  std::optional<size_t> bias{};         ///< copied with the module, never changed
  int64_t e = 1, n = 0, k = 0;
  bool stacked = false;
  bool k_outer = false;  ///< stored [E, K, N]; not set for INT4, whose packing states it
  /// True for a quantized embedding, or a piece of one, whose rows are looked up. Pieces share one scale.
  bool is_table = false;
  /// Rows and columns of weights that share a scale: {n, k}, {1, k} or a block for FP8, {1, 32} for MXFP8 and
  /// MXFP4, {1, 16} for NVFP4, {1, group} for INT4 without a group_index.
  int64_t scale_rows = 0, scale_cols = 0;
  Int4Packing packing{};             ///< INT4 only
  int zero_offset = 0;               ///< INT4 only: added to stored zero points
  bool ignores_zero_points = false;  ///< INT4 only: all are 8, whatever is stored
  bool wraps = false;  ///< INT4 only: the producer means 0 by a zero point that engines read as 16
  /// INT4 only: the config's setting that makes all zero points 8, "sym: true". Other stored ones are
  /// refused. Empty: no such setting.
  std::string symmetry{};
  /// The order of rows in a stack of gate and up. The reader returns rows as stored.
  GateUpRows rows = GateUpRows::kHalves;
  std::optional<size_t> nvfp4{};  ///< position in Checkpoint::nvfp4_modules()

  /// The weight and all tensors that its values depend on: all but the bias.
  std::vector<size_t> tensors() const;
  /// True if a range of rows lies in many pieces in the file, one for each input or for several inputs.
  bool reads_across() const { return k_outer || (format->integers && packing != Int4Packing::kAlongK); }
};

/// Returns every linear of a checkpoint, including routers and heads, and every quantized embedding
/// (is_table), in natural order of names. Float embeddings, norms and convolutions are left out. Names, types
/// and shapes of tensors decide; for INT4 the configuration and the values of weight_shape do, too. Modules
/// with tensors that disagree go into `problems`; the other form throws an Error that lists them.
std::vector<Linear> find_weight_modules(const Checkpoint& checkpoint, Problems& problems,
                                        std::span<const WeightDialect> dialects = weight_dialects());
std::vector<Linear> find_weight_modules(const Checkpoint& checkpoint);

/// True if an FP8 module is MXFP8: one scale byte, a power of two, for 32 weights along K. If K is 32, there
/// is one scale a row, [N, 1] or [N].
bool is_mxfp8(const Checkpoint& checkpoint, const Linear& module);

/// A global scale as stored and as a multiplier.
struct SourceScale {
  uint32_t raw_bits;
  float multiplier;
};

/// The global scale of one expert of a module. Adds a problem if it is not positive and finite, or makes a
/// weight not finite in BF16.
SourceScale read_global_scale(const Checkpoint& checkpoint, const Nvfp4Linear& module, int64_t expert,
                              Problems& problems);

/// The bytes of some rows of a module's expert: values or codes, and the scales of their blocks. In AWQ's
/// packing of INT4, the words also hold other rows.
struct StoredRows {
  std::span<const uint8_t> weights, scales;
};

/// Reads weights of any format as float32, exactly: every product is rounded once. Use one reader per thread.
class WeightReader {
 public:
  explicit WeightReader(const Checkpoint& checkpoint) : checkpoint_(checkpoint) {}

  /// Rows [n0, n1) of expert `e`, [n1 - n0, K], row after row, through buffers of their stored bytes. If K is
  /// outer, the file is read in K pieces, so read many rows at a time. Throws Error, naming the place, on
  /// scales that are NaN, infinite or (except in INT4) negative, on FP8 weights that are NaN, and on groups
  /// that do not exist.
  void read_rows(const Linear& module, int64_t e, int64_t n0, int64_t n1, std::span<float> out);
  /// The stored bytes of the same rows, row after row even if K is outer. Valid until the next read.
  StoredRows read_stored(const Linear& module, int64_t e, int64_t n0, int64_t n1);
  /// Throws Error if stored zero points of INT4 contradict the config, or if loaders differ on their meaning.
  /// read_rows() checks the same for its rows.
  void check_zero_points(const Linear& module);
  /// The stored bytes of the rows that read_rows() read last.
  StoredRows last_stored() const { return {weights_, scales_}; }
  uint64_t bytes_read() const { return bytes_read_; }
  const Checkpoint& checkpoint() const { return checkpoint_; }

 private:
  /// Rows of an expert's matrix [rows, cols], which is stored so or, with `k_outer`, as [cols, rows].
  struct RowBlock {
    size_t tensor;
    int64_t e, rows, cols;
    int bytes;  ///< bytes of an element
    bool k_outer;
    int64_t begin, end;  ///< rows
  };
  void read_row_block(const RowBlock& row_block, std::vector<uint8_t>& to);
  void read_weights(const Linear& module, int64_t e, int64_t n0, int64_t n1);
  /// Scales of the rows' blocks, [blocks of N, blocks of K].
  void read_scales(const Linear& module, int64_t e, int64_t n0, int64_t n1);
  float read_global_scale(const Linear& module, int64_t e);
  void read_tiles(const Linear& module, int64_t e, int64_t n0, int64_t n1, std::span<float> out);
  void read_pairs(const Linear& module, int64_t e, int64_t n0, int64_t n1, std::span<float> out);
  /// Number of blocks along K that have scales.
  int64_t scale_columns(const Linear& module) const;
  /// The scales of a row block as float32. Throws Error on an invalid scale.
  std::vector<float> read_float_scales(const Linear& module, int64_t e, int64_t n0, int64_t n1);
  std::vector<float> read_zero_points(const Linear& module, int64_t n0, int64_t n1);
  [[noreturn]] void refuse_zero_point(const Linear& module, int stored, int64_t n, int64_t group) const;
  [[noreturn]] void refuse_wrapped_zero_point(const Linear& module, int64_t n, int64_t group) const;
  std::vector<int32_t> read_group_index(const Linear& module);
  void read_integers(const Linear& module, int64_t n0, int64_t n1, std::span<float> out);

  const Checkpoint& checkpoint_;
  std::vector<uint8_t> weights_, scales_, zero_points_, turned_;
  uint64_t bytes_read_ = 0;
};

}  // namespace twofour
