#pragma once
#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/numbers/casts.h"
#include "kernels/numbers/quantize.h"
#include "lib/look/metrics/quality.h"
#include "lib/source/checkpoint/checkpoint.h"
#include "lib/source/linears/linears.h"
#include "lib/write/encode/quantized_group.h"
#include "lib/write/transform/matrix_solver.h"
#include "lib/write/transform/reference_checkpoint.h"
#include "lib/write/view/quantized_view.h"

namespace twofour {

/// The arithmetic, the choice of block scales and the treatment of zero blocks, according to the settings of
/// a rule.
QuantizeRule quantize_rule(const EncodeRule& rule);

/// The global scale of an NVFP4 matrix, and the settings that belong to it.
struct MatrixScale {
  GlobalScale global{};  ///< as the arithmetic uses it
  float written = 0;     ///< as the dialect stores it
  ZeroBlock zero_block = ZeroBlock::producer;
  bool is_kept = false;
  bool is_zero = false;  ///< all weights are zero
};

/// The global scale of matrices whose largest magnitude is `amax`. If `amax` is 0, the global scale is 1 and
/// all blocks are zero. ModelOpt would divide by zero here, and readers refuse a global scale of zero.
MatrixScale shared_scale(const EncodeRule& rule, const QuantizeRule& quantize, float amax);

/// The global scale that is given for the matrix with this name, if there is one.
std::optional<MatrixScale> kept_scale(const EncodeRule& rule, const QuantizeRule& quantize,
                                      const FixedGlobalScales& kept, const std::string& name);

/// Restores the sign of codes for weights that are -0. Producers drop this sign. Only a checkpoint that was
/// quantized before has such weights. `codes` holds two codes per byte.
void restore_negative_zeros(std::span<const float> weights, std::span<uint8_t> codes);

/// True if compressed-tensors' arithmetic stores 1 since the correct value exceeds the range of the weights'
/// type.
bool is_overflow(const QuantizeRule& quantize, const MatrixScale& scale);

/// Quantizes groups of matrices in bounded memory, one row block after the other. The first pass finds the
/// largest magnitudes, and the second computes the bytes. A group with only one row block is read once. For
/// layouts, single rows of a group can be quantized, too. Each thread needs its own encoder.
class Encoder : public RowQuantizer {
 public:
  explicit Encoder(const Worker& worker)
      : source_(worker.source),
        kept_(worker.kept),
        isa_(worker.isa),
        reader_(worker.source),
        solver_(worker.compute) {}

  /// Takes the bytes of a part of the group in order, from front to back. `part` is an index into the group's
  /// parts.
  using Write = std::function<void(int part, std::span<const uint8_t> bytes)>;
  /// Quantizes a group and returns a result for each of its matrices. Writes nothing if a result has
  /// problems, or if `only_check`. Throws Error on I/O errors.
  std::vector<EncodedResult> encode(const QuantizedGroup& group, const Write& write, bool only_check = false);
  uint64_t bytes_read() const { return reader_.bytes_read() + bytes_read_; }

  // --- encode_rows.cpp ---
  QuantizedRows quantize(const QuantizedGroup& group) override;
  GroupScale survey(const QuantizedGroup& group) override;
  void quantize(const QuantizedGroup& group, const GroupScale& scale, size_t matrix, const RowRange& rows,
                std::span<uint8_t> codes, std::span<uint8_t> scales) override;
  void rewrite(const TensorRewrite& tensor, uint64_t begin, std::span<uint8_t> out) override;

 private:
  using Results = std::vector<EncodedResult>;
  /// A tile of FP8 weights, which share one scale.
  struct Tile {
    float amax = 0;           ///< largest magnitude
    float product = 0;        ///< for sources in NVFP4, largest magnitude without the global scale
    Mxfp4Range range;         ///< for sources in MXFP4
    float scale = 0;          ///< the scale that is written
    bool is_inexact = false;  ///< true if a value was rounded
  };
  /// The results of the first pass over a matrix.
  struct Survey {
    float amax = 0;
    TargetExtent targets;     ///< set if statistics have targets
    MatrixScale scale;        ///< for NVFP4
    std::vector<Tile> tiles;  ///< for FP8
  };
  /// Bytes in the form in which the source stores them.
  struct StoredBlock {
    std::span<const uint8_t> values, scales;
  };

  // --- Reading ---
  /// Calls f(first, last, begin, end) for the row blocks of each module. [begin, end) are rows of the module,
  /// and [first, last) are the matrices that have these rows.
  template <class F>
  void for_each_source(F&& f);
  /// Calls f(matrix, row, rows, stored) for the row blocks of each matrix, in order. `stored` is set for
  /// four-bit sources.
  template <class F>
  void for_each_row_block(F&& f);
  /// Calls f(matrix, row, stored) for the row blocks of each matrix, in order. It is only for four-bit
  /// sources.
  template <class F>
  void for_each_stored_block(F&& f);
  std::span<const float> read(const Linear& module, int64_t expert, int64_t begin, int64_t end);
  /// The rows of a four-bit matrix among rows [begin, end) of its module, which `all` holds.
  StoredBlock stored_rows(const EncodedMatrix& matrix, const StoredRows& all, int64_t begin, int64_t end);
  /// The rows of a matrix in `all`, which holds rows [begin, end) of its module with `width` elements each.
  /// `gathered` is the memory for rows that are not contiguous.
  template <class T>
  static std::span<const T> rows_of(const EncodedMatrix& matrix, std::span<const T> all, int64_t width,
                                    int64_t begin, int64_t end, std::vector<T>& gathered);

  // --- encode_rows.cpp ---
  std::span<const float> read_inputs(const EncodedMatrix& matrix, const RowRange& rows);
  std::span<const float> read_floats(const EncodedMatrix& matrix, const RowRange& rows);
  void quantize_rows(const EncodeRule& rule, const GroupScale& shared, const EncodedMatrix& matrix,
                     const RowRange& rows, std::span<uint8_t> codes, std::span<uint8_t> scales);
  void cast_rows(const EncodedMatrix& matrix, int exponent, const RowRange& rows, std::span<uint8_t> codes,
                 std::span<uint8_t> scales);

  // --- encoder.cpp ---
  void begin(const QuantizedGroup& group);
  void survey_all(Results& results);
  /// Adds problems for targets that are unreasonable, and warns of targets that are larger than the weights.
  void check_targets(Results& results) const;
  bool is_from(WeightFormat format) const;
  /// True if scales are chosen so that values of four-bit sources stay the same.
  bool may_cast() const;
  void survey_stored(const EncodedMatrix& matrix, int64_t row, const StoredBlock& block, Survey& survey);
  void prepare(Results& results);
  /// Throws Error if the statistics of a matrix cannot be used for solving.
  void check_statistics();
  void write_all(const Write& write, Results& results);
  void refuse_loss(Results& results);
  void write_bias(const EncodedMatrix& matrix, const Write& write);

  // --- encode_nvfp4.cpp ---
  /// Notes in `results` the values that casting the group from MXFP4 loses, according to the exponents of its
  /// blocks. Returns false if the loss is refused.
  bool can_cast_to_nvfp4(Results& results) const;
  void choose_global_scales(Results& results);
  void check_global_scale(const std::string& name, float amax, const MatrixScale& scale,
                          EncodedResult& result) const;
  /// True if statistics solve a matrix, and its global scale allows that.
  bool is_solved(const EncodedMatrix& matrix, const MatrixScale& scale) const;
  /// The target that the codes of rows approximate: the weights, or the target of the statistics.
  std::span<const float> target_of(const EncodedMatrix& matrix, int64_t row, std::span<const float> rows);
  void encode_solved(const EncodedMatrix& matrix, const Survey& survey, int64_t row,
                     std::span<const float> rows, const Write& write, EncodedResult& result);
  /// Adds the losses of the rows in `back_`, and of rows that are rounded without statistics, both against
  /// `target`. Overwrites `codes_`, `scales_` and `back_`.
  void add_rounding(const EncodedMatrix& matrix, const Survey& survey, int64_t row,
                    std::span<const float> rows, std::span<const float> target, OutputLoss& to);
  /// The mask of rows [row, row + count) of a matrix. Empty if no mask is given.
  std::span<const uint8_t> mask_of(const EncodedMatrix& matrix, int64_t row, size_t count);
  /// The arithmetic by which readers of the dialect decode NVFP4.
  Arithmetic reads() const { return rule_.divides ? Arithmetic::compressed_tensors : Arithmetic::modelopt; }
  QuantizeRule begin_rows(const Survey& survey, size_t weights);
  void write_codes(const EncodedMatrix& matrix, const Survey& survey, std::span<const float> rows,
                   std::span<const uint8_t> scales, const Write& write, EncodedResult& result);
  /// Writes the source's NVFP4, without the codes that a mask drops.
  void encode_masked(const EncodedMatrix& matrix, const Survey& survey, int64_t row,
                     std::span<const float> rows, const StoredBlock& stored, const Write& write,
                     EncodedResult& result);
  void encode_nvfp4(const EncodedMatrix& matrix, const Survey& survey, int64_t row,
                    std::span<const float> rows, const Write& write, EncodedResult& result);
  void cast_to_nvfp4(const Write& write, Results& results);
  /// Adds the error of MXFP4 rows to the result. `codes_` and `scales_` hold these rows as NVFP4.
  void add_rounded_blocks(const EncodedMatrix& matrix, const StoredBlock& block, EncodedResult& result);

  // --- encode_solved.cpp ---
  /// True if statistics solve a matrix in a format without a global scale, and its numbers allow that.
  bool is_solved(const EncodedMatrix& matrix, const Survey& survey) const;
  /// Warns of matrices that statistics cannot solve because of their numbers.
  void note_unsolved(Results& results) const;
  /// Solves rows that were rounded into `codes_`, `scales_` and `back_`, and replaces these. `decode()` reads
  /// the codes back.
  void solve_rounded(std::span<const float> rows, std::span<const float> target, uint8_t zero_scale,
                     std::span<const float> steps, const std::function<void()>& decode,
                     EncodedResult& result);

  // --- encode_mx.cpp ---
  void encode_mx(const EncodedMatrix& matrix, const Survey& survey, int64_t row, std::span<const float> rows,
                 const Write& write, EncodedResult& result);
  void cast_to_mx(const Write& write);

  // --- encode_fp8.cpp ---
  void survey_tiles(const EncodedMatrix& matrix, int64_t row, const StoredBlock& block, Survey& survey);
  void survey_fp8(const EncodedMatrix& matrix, int64_t row, std::span<const float> rows, Survey& survey);
  void choose_tile_scales(Results& results);
  void encode_fp8(const EncodedMatrix& matrix, Survey& survey, int64_t row, std::span<const float> rows,
                  const Write& write, EncodedResult& result);
  /// The scales of rows, one for 16 weights.
  std::vector<float> steps_of(const EncodedMatrix& matrix, const Survey& survey, int64_t row,
                              size_t weights) const;
  void cast_to_fp8(const Write& write, Results& results);
  /// Adds the error of the rounded rows of a block, and marks their tiles as inexact.
  void add_rounded(const EncodedMatrix& matrix, int64_t row, const StoredBlock& block, Survey& survey,
                   EncodedResult& result);
  void write_tile_scales(const EncodedMatrix& matrix, const Survey& survey, const Write& write);
  void count_tiles(Results& results);
  std::string tile_text(const EncodedMatrix& matrix, const Survey& survey, size_t tile) const;

  const Checkpoint& source_;
  const ReferenceCheckpoint* const kept_;
  const Isa isa_;
  const QuantizedGroup* group_ = nullptr;  ///< the group that is being quantized
  EncodeRule rule_{};                      ///< the rule of the group
  QuantizeRule quantize_{};                ///< the arithmetic of the group
  WeightReader reader_;
  MatrixSolver solver_;
  std::vector<Survey> surveys_;
  bool may_cast_ = false;      ///< the value of may_cast() for the group
  bool from_mxfp4_ = false;    ///< may_cast_, and the sources are in MXFP4
  bool reads_stored_ = false;  ///< true if may_cast_, or if masks drop codes of NVFP4
  bool is_cast_ = false;       ///< true if MXFP4 is cast to NVFP4 or an MX format
  Mxfp4Range range_;
  struct RowBlock {
    const Linear* module = nullptr;
    int64_t expert = 0, begin = 0, end = 0;
    bool operator==(const RowBlock&) const = default;
  } held_;  ///< the rows that `rows_` holds
  std::vector<float> rows_, gathered_, pruned_, back_, aimed_;
  std::vector<uint8_t> codes_, scales_, shifts_, gathered_values_, gathered_scales_, mask_;
  uint64_t bytes_read_ = 0;  ///< bytes of biases that were read
};

/// The index of the matrix's first row at or after row `n` of its module.
inline bool same_source(const EncodedMatrix& a, const EncodedMatrix& b) {
  return a.source == b.source && a.expert == b.expert;
}

/// The matrix's first row that is row `n` of its module or comes after it.
inline int64_t row_at(const EncodedMatrix& m, int64_t n) {
  return std::clamp<int64_t>((n - m.first + m.step - 1) / m.step, 0, m.rows);
}

inline std::span<const uint8_t> bytes_of(std::span<const float> values) {
  return {reinterpret_cast<const uint8_t*>(values.data()), values.size_bytes()};
}

void check_encoder_interrupt();

template <class F>
void Encoder::for_each_source(F&& f) {
  const auto& matrices = group_->matrices();
  for (size_t i = 0; i < matrices.size();) {
    size_t last = i + 1;  // gate and up of a stack are read together
    while (last < matrices.size() && same_source(matrices[last], matrices[i])) ++last;
    const Linear& m = *matrices[i].source;
    const int64_t step = group_->strip_rows(m);
    for (int64_t n = 0; n < m.n; n += step) {
      check_encoder_interrupt();
      f(i, last, n, std::min(n + step, m.n));
    }
    i = last;
  }
}

template <class T>
std::span<const T> Encoder::rows_of(const EncodedMatrix& m, std::span<const T> all, int64_t width,
                                    int64_t begin, int64_t end, std::vector<T>& gathered) {
  const int64_t r0 = row_at(m, begin), r1 = row_at(m, end);
  const auto row = static_cast<size_t>(width), count = static_cast<size_t>(r1 - r0);
  const auto at = static_cast<size_t>(m.first + r0 * m.step - begin), step = static_cast<size_t>(m.step);
  if (m.step == 1) return all.subspan(at * row, count * row);
  gathered.resize(count * row);
  for (size_t r = 0; r < count; ++r) std::copy_n(&all[(at + r * step) * row], row, &gathered[r * row]);
  return gathered;
}

template <class F>
void Encoder::for_each_row_block(F&& f) {
  for_each_source([&](size_t first, size_t last, int64_t begin, int64_t end) {
    const EncodedMatrix& any = group_->matrices()[first];
    const auto rows = read(*any.source, any.expert, begin, end);
    for (size_t i = first; i < last; ++i) {
      const EncodedMatrix& m = group_->matrices()[i];
      const int64_t row = row_at(m, begin);
      if (row >= row_at(m, end)) continue;
      const StoredBlock stored =
          reads_stored_ ? stored_rows(m, reader_.last_stored(), begin, end) : StoredBlock{};
      f(i, row, rows_of(m, rows, m.k, begin, end, gathered_), stored);
    }
  });
}

template <class F>
void Encoder::for_each_stored_block(F&& f) {
  for_each_source([&](size_t first, size_t last, int64_t begin, int64_t end) {
    const EncodedMatrix& any = group_->matrices()[first];
    held_ = {};  // the reader holds other rows from here on
    const StoredRows stored = reader_.read_stored(*any.source, any.expert, begin, end);
    for (size_t i = first; i < last; ++i) {
      const EncodedMatrix& m = group_->matrices()[i];
      const int64_t row = row_at(m, begin);
      if (row < row_at(m, end)) f(i, row, stored_rows(m, stored, begin, end));
    }
  });
}

}  // namespace twofour
