#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "formats/naming.h"
#include "formats/weight_dialect.h"
#include "lib/checkpoint/checkpoint.h"
#include "lib/findings/problems.h"

namespace twofour {

/// One linear layer, or a stack of them, [E, N, K], in any number format that twofour reads. Tensors are
/// positions in Checkpoint::tensors().
struct Linear {
  std::string name;  ///< without the suffix of its format: "model.layers.0.mlp.down_proj"
  WeightFormat format;
  size_t weight;                  ///< values or codes
  std::optional<size_t> scale{};  ///< of FP8; of MXFP4, NVFP4 and INT4 those of blocks and groups
  std::optional<size_t> global_scale{}, input_scale{};
  // Of INT4. A weight is (code - zero point) * scale; without a tensor of them all zero points are 8.
  std::optional<size_t> zero_points{};
  std::optional<size_t> group_index{};  ///< [K], the group of each input; -1 throughout: in order
  std::optional<size_t> shape{};        ///< [2], N and K
  std::optional<size_t> bias{};         ///< goes with the module, never changes
  int64_t e = 1, n = 0, k = 0;
  bool stacked = false;
  bool k_outer = false;  ///< stored [E, K, N]; not said of words of INT4
  /// Looked up by rows, not multiplied: a quantized embedding, or a piece of one. Pieces share one scale.
  bool is_table = false;
  /// Rows and columns of weights that share a scale: of FP8 {n, k}, {1, k} or a block, of MXFP8 {1, 32}; of
  /// MXFP4 {1, 32}; of NVFP4 {1, 16}; of INT4 {1, group}, without a group_index.
  int64_t scale_rows = 0, scale_cols = 0;
  Int4Packing packing{};             ///< of INT4
  int zero_offset = 0;               ///< of INT4: added to stored zero points
  bool ignores_zero_points = false;  ///< of INT4: all are 8, whatever is stored
  bool wraps = false;  ///< of INT4: its producer means 0 by a zero point that engines read as 16
  /// Of INT4: what the config says that makes all zero points 8, "sym: true"; stored ones that say otherwise
  /// are refused. Empty: nothing.
  std::string symmetry{};
  /// How a stack of gate and up orders its rows. The reader gives them as they are stored.
  GateUpRows rows = GateUpRows::kHalves;
  std::optional<size_t> nvfp4{};  ///< position in Checkpoint::nvfp4_modules()

  /// The weight and all that belongs to its values: everything but the bias.
  std::vector<size_t> tensors() const;
  /// Whether some rows lie in many pieces, one for each input or several of them.
  bool reads_across() const { return k_outer || (format->integers && packing != Int4Packing::kAlongK); }
};

/// Every linear of a checkpoint by its tensors' names, types and shapes, in natural order of names, and every
/// quantized embedding (is_table). Other matrices (embeddings of floats, norms, convolutions) are not among
/// them, routers and heads are. Of INT4 the configuration counts, too, and weight_shape is read. Modules with
/// tensors that disagree go into `problems`; the other form throws an Error that lists them.
std::vector<Linear> find_weight_modules(const Checkpoint& checkpoint, Problems& problems,
                                        std::span<const WeightDialect> dialects = weight_dialects());
std::vector<Linear> find_weight_modules(const Checkpoint& checkpoint);

/// Whether a module of FP8 is MXFP8: one byte of scale, a power of two, for 32 weights along K. Where K is 32
/// that is one a row, [N, 1] or [N].
bool is_mxfp8(const Checkpoint& checkpoint, const Linear& module);

/// A global scale as stored and as the multiplier that it means.
struct SourceScale {
  uint32_t raw_bits;
  float multiplier;
};

/// The global scale of one expert of a module. One that is not positive and finite is a problem, and one with
/// which a weight is not finite in BF16.
SourceScale read_global_scale(const Checkpoint& checkpoint, const Nvfp4Linear& module, int64_t expert,
                              Problems& problems);

/// The bytes of some rows of a module's expert: values or codes, and the scales of their blocks. Of INT4 in
/// AWQ's packing, the words of all rows that share one with them.
struct StoredRows {
  std::span<const uint8_t> weights, scales;
};

/// Reads weights of any format as float32, exactly: every product is rounded once. Use one reader per thread.
class WeightReader {
 public:
  explicit WeightReader(const Checkpoint& checkpoint) : checkpoint_(checkpoint) {}

  /// Rows [n0, n1) of expert `e`, [n1 - n0, K], row after row, in buffers of the bytes that they are stored
  /// in. Where K is outer these come in K pieces, so take many rows at a time. Throws Error, naming the
  /// place, on scales that are NaN, infinite or, but of INT4, negative, on FP8 weights that are NaN, and on
  /// groups that do not exist.
  void read_rows(const Linear& module, int64_t e, int64_t n0, int64_t n1, std::span<float> out);
  /// The bytes that the same rows are stored in, row after row even where K is outer; valid
  /// until the next read.
  StoredRows read_stored(const Linear& module, int64_t e, int64_t n0, int64_t n1);
  /// Throws Error where stored zero points of INT4 are not what the config says that they are, or such that
  /// loaders read them in two ways. read_rows() does the same for its rows.
  void check_zero_points(const Linear& module);
  /// The bytes behind what read_rows() read last.
  StoredRows last_stored() const { return {weights_, scales_}; }
  uint64_t bytes_read() const { return bytes_read_; }
  const Checkpoint& checkpoint() const { return checkpoint_; }

 private:
  /// Part of an expert's matrix [rows, cols] that is stored so or, with `k_outer`, as [cols, rows].
  struct RowBlock {
    size_t tensor;
    int64_t e, rows, cols;
    int bytes;  ///< of an element
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
  /// Blocks of K that have scales.
  int64_t scale_columns(const Linear& module) const;
  /// The scales of a row block as float32. Throws Error on what is no scale.
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
