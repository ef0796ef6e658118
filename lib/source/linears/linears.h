#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "formats/naming.h"
#include "formats/weight_dialect.h"
#include "lib/base/findings/problems.h"
#include "lib/source/checkpoint/checkpoint.h"

namespace twofour {

/// One linear layer [N, K], or a stack of linear layers [E, N, K], in any number format that twofour reads.
/// Fields that name a tensor hold its position in Checkpoint::tensors().
struct Linear {
  std::string name;  ///< name without the suffix of the format: "model.layers.0.mlp.down_proj"
  WeightFormat format;
  size_t weight;                  ///< the values or the codes
  std::optional<size_t> scale{};  ///< scales of FP8, block scales of MXFP4 and NVFP4, group scales of INT4
  std::optional<size_t> global_scale{}, input_scale{};
  // The next three are for INT4 only. A weight is (code - zero point) * scale. Without stored zero points,
  // all zero points are 8.
  std::optional<size_t> zero_points{};
  /// [K], the number of each input's group; -1 everywhere: inputs are in order of their groups.
  std::optional<size_t> group_index{};
  std::optional<size_t> shape{};  ///< [2], the numbers N and K
  std::optional<size_t> bias{};   ///< copied with the module, never changed
  int64_t e = 1, n = 0, k = 0;
  bool stacked = false;
  /// True if stored as [E, K, N]; never set for INT4, where `packing` states the order.
  bool k_outer = false;
  /// True for a quantized embedding, or a piece of it. Rows of an embedding are looked up. Pieces of an
  /// embedding share one scale.
  bool is_table = false;
  /// The block of weights that share a scale, in rows and columns. FP8 has {n, k}, {1, k} or a block size,
  /// MXFP8, MXFP6 and MXFP4 have {1, 32}, NVFP4 has {1, 16} or {1, 32}, INT4 without a group_index has {1,
  /// group}.
  int64_t scale_rows = 0, scale_cols = 0;
  Int4Packing packing{};             ///< INT4 only
  int zero_offset = 0;               ///< INT4 only: added to stored zero points
  bool ignores_zero_points = false;  ///< INT4 only: all are 8, whatever is stored
  bool wraps = false;  ///< INT4 only: the producer means 0 by a zero point that engines read as 16
  /// INT4 only: the config's setting that makes all zero points 8, "sym: true". Other stored ones are
  /// refused. Empty: no such setting.
  std::string symmetry{};
  /// The config's setting by which these codes are of another format, or the reason why a stack has another
  /// shape than its block; readers of values refuse it. Empty: there is none.
  std::string contradiction{};
  bool lacks_config =
      false;  ///< GPTQ only: nothing states how zero points are stored; others than 8 are refused
  /// INT4 only: the config states that inputs are in order of their groups; a group_index must agree.
  bool is_ordered = false;
  /// The order of the rows in a stack of gate and up. WeightReader returns the rows as they are stored.
  GateUpRows rows = GateUpRows::kHalves;
  std::optional<size_t> nvfp4{};  ///< position in Checkpoint::nvfp4_modules()

  /// Returns the weight and all other tensors that its values depend on: all tensors but the bias.
  std::vector<size_t> tensors() const;
  /// True if the bytes of a range of rows are in many separate pieces of the file, each for one or several
  /// inputs.
  bool reads_across() const { return k_outer || (format->integers && packing != Int4Packing::kAlongK); }
};

/// Returns every linear of a checkpoint, including routers and heads, and every quantized embedding
/// (is_table), in natural order of names. Float embeddings, norms and convolutions are left out. Names, types
/// and shapes of tensors decide; for INT4 the configuration and the values of weight_shape do, too. A module
/// whose tensors disagree is left out and added to `problems`. The function without `problems` throws an
/// Error that lists them.
std::vector<Linear> find_weight_modules(const Checkpoint& checkpoint, Problems& problems,
                                        std::span<const WeightDialect> dialects = weight_dialects());
std::vector<Linear> find_weight_modules(const Checkpoint& checkpoint);

/// Returns the formats of a checkpoint's codes other than NVFP4, read or not, for messages: "8 linears in FP8
/// (the first model.layers.0.mlp.down_proj)"; "none among 26 tensors": there are none.
std::string other_formats_text(const Checkpoint& checkpoint);
/// Returns the NVFP4 modules whose codes the config calls another format, and the stacks of
/// find_odd_stacks(), as the tensor with the codes and Linear::contradiction. None in a view.
std::vector<std::pair<size_t, std::string>> find_nvfp4_contradictions(const Checkpoint& checkpoint);

/// True if an FP8 module is MXFP8: each 32 weights along K share a scale of one byte, which is a power of
/// two. If K is 32, each row has one scale, [N, 1] or [N].
bool is_mxfp8(const Checkpoint& checkpoint, const Linear& module);

/// A global scale as stored and as a multiplier.
struct SourceScale {
  uint32_t raw_bits;
  float multiplier;
};

/// The largest weight that a global scale of 1 allows: the largest code times the largest block scale.
inline constexpr float kNvfp4Range = 2688;
/// No trained weight or activation is larger than kLargestWeight, and none smaller than kSmallestWeight
/// matters.
inline constexpr float kLargestWeight = 1e5f, kSmallestWeight = 1e-9f;
/// True if a global scale, as a multiplier, is for weights that no model has. Most such scales are
/// reciprocals: divisors stored where a multiplier belongs, or multipliers where a divisor does.
inline bool is_beyond_weights(float multiplier) { return multiplier * kNvfp4Range > kLargestWeight; }

/// Reads the global scale of one expert of a module. Adds a problem if it is not positive and finite, if it
/// makes a weight infinite in BF16, or if it makes one larger than kLargestWeight and its reciprocal does
/// not.
SourceScale read_global_scale(const Checkpoint& checkpoint, const Nvfp4Linear& module, int64_t expert,
                              Problems& problems);

/// Reads the global scale of one expert of a module in a format with one, as a multiplier. Throws Error as
/// read_global_scale() adds problems.
float read_multiplier(const Checkpoint& checkpoint, const Linear& module, int64_t expert);

/// The stored bytes of some rows of one expert: values or codes, and the scales of their blocks. With AWQ's
/// packing of INT4, the words also hold codes of other rows.
struct StoredRows {
  std::span<const uint8_t> weights, scales;
};

/// Reads weights of any format as float32. Results are exact: every product is rounded once. Each thread
/// needs its own reader.
class WeightReader {
 public:
  explicit WeightReader(const Checkpoint& checkpoint) : checkpoint_(checkpoint) {}

  /// Reads rows [n0, n1) of expert `e` as [n1 - n0, K], through buffers for their stored bytes. If K is the
  /// outer dimension, the file is read in K pieces, so a caller should read many rows at once. Throws Error,
  /// naming the place, on scales that are NaN, infinite or (except in INT4) negative, on FP8 weights that are
  /// NaN, and on groups that do not exist.
  void read_rows(const Linear& module, int64_t e, int64_t n0, int64_t n1, std::span<float> out);
  /// Reads the stored bytes of rows [n0, n1), row after row even if K is the outer dimension. They are valid
  /// until the next read.
  StoredRows read_stored(const Linear& module, int64_t e, int64_t n0, int64_t n1);
  /// Throws Error if stored zero points of INT4 contradict the config, or if loaders disagree about their
  /// meaning. read_rows() checks the zero points of its rows in the same way.
  void check_zero_points(const Linear& module);
  /// Throws Error if the config contradicts the module: its format, the order of its groups, or zero points
  /// as in check_zero_points().
  void check_settings(const Linear& module);
  /// The stored bytes of the rows that the last read_rows() read.
  StoredRows last_stored() const { return {weights_, scales_}; }
  uint64_t bytes_read() const { return bytes_read_; }
  const Checkpoint& checkpoint() const { return checkpoint_; }

 private:
  /// A block of rows of an expert's matrix [rows, cols]. If `k_outer`, the matrix is stored as [cols, rows].
  struct RowBlock {
    size_t tensor;
    int64_t e, rows, cols;
    int bytes;  ///< bytes of an element
    bool k_outer;
    int64_t begin, end;  ///< rows [begin, end) are read
  };
  void read_row_block(const RowBlock& row_block, std::vector<uint8_t>& to);
  void read_weights(const Linear& module, int64_t e, int64_t n0, int64_t n1);
  /// Reads the scales of the rows' blocks as [blocks of N, blocks of K].
  void read_scales(const Linear& module, int64_t e, int64_t n0, int64_t n1);
  float read_global_scale(const Linear& module, int64_t e);
  void read_tiles(const Linear& module, int64_t e, int64_t n0, int64_t n1, std::span<float> out);
  void read_grouped(const Linear& module, int64_t e, int64_t n0, int64_t n1, std::span<float> out);
  /// Throws Error if FP8 weights are larger than kLargestWeight and would not be with reciprocal scales.
  void refuse_reciprocal(const Linear& module, int64_t e, int64_t n0, std::span<const float> scales,
                         std::span<const float> weights) const;
  /// The number of blocks along K that have a scale of their own.
  int64_t scale_columns(const Linear& module) const;
  /// Reads the scales of rows [n0, n1) as float32. Throws Error on an invalid scale.
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
