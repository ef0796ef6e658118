#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "formats/atom.h"
#include "formats/weight_dialect.h"
#include "kernels/pack/prune.h"
#include "lib/look/metrics/quality.h"
#include "lib/recipe/artifact/recipe.h"
#include "lib/recipe/selection/input_scales.h"
#include "lib/recipe/statistics/solving.h"
#include "lib/source/dialects/output_dialect.h"
#include "lib/source/linears/linears.h"
#include "lib/write/plan/transformation.h"

namespace twofour {

/// The tensors that a quantized matrix may have.
enum class EncodedPart { kValues, kScales, kGlobalScale, kInputScale, kBias };
inline constexpr size_t kEncodedParts = 5;

struct EncodedMatrix;

/// The rule by which matrices are quantized. The encoder and the proof read the settings by separate code.
struct EncodeRule {
  std::string to;                                  ///< the value of Rule::to
  Scheme scheme{};                                 ///< the scheme that is written: NVFP4, FP8 or one of
                                                   ///< kMxFormats
  const OutputDialect* dialect = nullptr;          ///< the dialect that is written
  std::shared_ptr<const Rule> settings;            ///< the rule's settings with every default, but without
                                                   ///< modules
  DType weight_type = DType::kF32;                 ///< see QuantizedGroup::set_weight_type
  bool divides = false;                            ///< the global scale is written as a divisor
  bool prune = false;                              ///< matrices that are not solved are pruned to 2:4 before
                                                   ///< they are quantized
  std::optional<PrunePattern> pattern{};           ///< the sparsity pattern of matrices that are solved
  std::shared_ptr<const Statistics> statistics{};  ///< statistics that choose weights; may be null
  std::shared_ptr<const EncodedBefore> encoded{};  ///< groups that these statistics solved in an earlier run;
                                                   ///< may be null
  int sweeps = -1;                                 ///< the value of Rule::sweeps
  std::shared_ptr<const MaskFile> masks{};         ///< the masks that prune; null if masks are computed
  /// True if NVFP4 of the source is solved again. It keeps its names, global scales and input scales.
  bool in_place = false;
  /// If `in_place`, a gate and its up get the larger of their two global scales.
  bool folds_pairs = false;

  /// The row of the format that is written, which the solver reads.
  WeightFormat format() const { return scheme.is_mxfp8() ? WeightFormat::kMxfp8 : scheme.format; }
  bool is_nvfp4() const { return scheme.format->global_scale; }
  bool is_mx() const { return scheme.format->group == kMxGroup || scheme.is_mxfp8(); }
  /// True for FP8 with one scale for each tensor, row or block.
  bool is_tiled() const { return !is_nvfp4() && !is_mx(); }
  /// True if a matrix gets the source's codes and block scales, except for codes that its mask drops.
  bool masks_codes(const EncodedMatrix& matrix) const;
  /// True if a matrix is not solved, and its weights are pruned before they are quantized.
  bool prunes_weights(const EncodedMatrix& matrix) const;
  /// The number of weights along K that form a group. K must be a multiple of it.
  int64_t group() const { return is_nvfp4() ? kGroup : is_mx() ? kMxGroup : 1; }
  /// The rows and columns that share an FP8 scale, in a matrix of `rows` by `k` weights.
  struct Tile {
    int64_t rows, cols;
  };
  Tile tile(int64_t rows, int64_t k) const;
  /// casts() is true if scales are chosen so that values of four-bit sources stay the same. is_strict() is
  /// true if all values of quantized sources must stay the same.
  bool casts() const { return settings->exact != Exact::kOff; }
  bool is_strict() const { return settings->exact == Exact::kStrict; }
};
/// The name of the format that the rule writes: "FP8", "MXFP8", "MXFP6", "MXFP4" or "NVFP4".
const char* encoded_name(const EncodeRule& rule);

/// A matrix that is quantized. It consists of rows of one expert of a module of the source. Row i is the
/// expert's row `first + i * step`.
struct EncodedMatrix {
  std::string name;  ///< name of the written module: "model.layers.0.mlp.experts.3.gate_proj"
  std::shared_ptr<const Linear> source;
  int64_t expert;
  int64_t first, step, rows, k;
  float input_scale = 0;                                        ///< the input scale that is written; 0 if
                                                                ///< there is none
  Solving solving = {};                                         ///< the method by which statistics solve it
  std::optional<size_t> mask = {};                              ///< index of its mask in EncodeRule::masks
  std::array<int, kEncodedParts> parts = {-1, -1, -1, -1, -1};  ///< indices of the group's parts; -1 if the
                                                                ///< part is not written
  int part(EncodedPart p) const { return parts[static_cast<size_t>(p)]; }
};

/// Matrices that are quantized together. Engines multiply them as one, so they share a global scale.
class QuantizedGroup : public Transformation {
 public:
  QuantizedGroup(EncodeRule rule, std::shared_ptr<const FixedGlobalScales> kept, const MemoryLimits& limits);
  /// Two functions that add a matrix, and a part of the matrix with the given index.
  void add(EncodedMatrix matrix) { matrices_.push_back(std::move(matrix)); }
  void add_part(size_t matrix, EncodedPart part, TensorInfo info);
  /// Adds a tensor of the source from which the group is made. The tensors of a stack belong to its first
  /// group.
  void consume(size_t tensor) { consumed_.push_back(tensor); }
  /// A matrix for planning, which may change its solving, its mask, and the input scale that is written.
  EncodedMatrix& matrix(size_t i) { return matrices_[i]; }
  /// Sets the rule that chooses input scales of NVFP4. Null means that there are none.
  void set_input_scales(std::shared_ptr<const InputScaleRule> rule) { input_scales_ = std::move(rule); }
  const std::shared_ptr<const InputScaleRule>& input_scales() const { return input_scales_; }
  /// Sets the type of the weights in the source. It is float32 if they were quantized or have several types.
  void set_weight_type(DType type) { rule_.weight_type = type; }

  /// The entry in twofour.json for a matrix whose weights were chosen by statistics or masks. It has the
  /// EncodedResult and the solver.
  Json solved_note(size_t matrix, const EncodedResult& found) const;

  const EncodeRule& encode_rule() const { return rule_; }
  const FixedGlobalScales& kept() const { return *kept_; }
  const std::vector<EncodedMatrix>& matrices() const { return matrices_; }
  size_t part_count() const { return infos_.size(); }
  const TensorInfo& part_info(int part) const { return infos_[static_cast<size_t>(part)]; }
  /// The number of rows of a module that are read in one go.
  int64_t strip_rows(const Linear& module) const;

  std::string name(const Checkpoint&) const override { return matrices_[0].name; }
  std::vector<TensorInfo> outputs(const Checkpoint&) const override { return infos_; }
  std::vector<size_t> sources() const override { return consumed_; }
  std::vector<Unit> units(const Checkpoint& source) const override;
  uint64_t worker_bytes() const override;
  std::string decision(int part) const override;
  std::string origin(const Checkpoint& source, int part) const override;
  std::unique_ptr<Work> begin() const override;
  Json prove(Proof& proof) const override;
  Json empty_result() const override;
  void check_result(const Json& result) const override;
  Json entries(const Checkpoint& source, const Json& result, const std::vector<Json>& tensors) const override;
  std::string content(const Json& result, std::span<const Hash128> outputs) const override;
  std::vector<ModuleReport> report(const Checkpoint& source, const Json& result) const override;
  /// Quantizing loses precision, and the figures are reported.
  std::optional<ValueComparison> value_comparison() const override {
    return {{std::numeric_limits<double>::infinity()}};
  }

 private:
  const EncodedMatrix& matrix_of(int part) const;

  EncodeRule rule_;
  std::shared_ptr<const FixedGlobalScales> kept_;
  std::shared_ptr<const InputScaleRule> input_scales_;
  MemoryLimits limits_;
  std::vector<EncodedMatrix> matrices_;
  std::vector<TensorInfo> infos_;
  std::vector<size_t> consumed_;
};

/// Groups whose weights an earlier run chose, by the same rule and statistics. Safe to use from several
/// threads.
class EncodedBefore {
 public:
  /// Takes the bytes of a part of the group in order, from front to back.
  using Write = std::function<void(int part, std::span<const uint8_t> bytes)>;
  virtual ~EncodedBefore() = default;
  /// Writes all parts of a group and returns a result for each of its matrices. If it does not have the
  /// group, the result is empty and nothing is written.
  virtual std::optional<std::vector<EncodedResult>> read(const QuantizedGroup& group,
                                                         const Write& write) const = 0;
};

/// The number of weights that are read in one go. Their floats and results should stay in the L2 cache.
inline constexpr int64_t kQuantizeStripWeights = 128 << 10;
/// The size of a worker's buffers, in bytes per weight of a row block. They hold the stored bytes twice, the
/// floats as read, the pruned floats, the floats as read back, and the bytes that are written.
inline constexpr uint64_t kQuantizeStripBytes = 24;

/// One of the matrices that a stack holds per expert.
struct StackPart {
  const char* leaf;  ///< last part of its name, as "gate_proj"
  int64_t first, step, rows;
};
/// The matrices in the rows of a stack. Empty if no naming rule knows the stack.
std::vector<StackPart> stack_parts(const Checkpoint& checkpoint, const std::string& name, int64_t rows);
/// The name of a matrix of an expert. For "model.layers.0.mlp.experts.gate_up_proj", 3 and "gate_proj", it is
/// "model.layers.0.mlp.experts.3.gate_proj".
std::string expert_name(const std::string& stack, int64_t expert, const char* leaf);

}  // namespace twofour
