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
#include "lib/source/checkpoint/linears.h"
#include "lib/source/dialects/output_dialect.h"
#include "lib/write/plan/transformation.h"

namespace twofour {

/// The tensors that are written of a quantized matrix.
enum class EncodedPart { kValues, kScales, kGlobalScale, kInputScale, kBias };
inline constexpr size_t kEncodedParts = 5;

struct EncodedMatrix;

/// How matrices are quantized. The encoder and the proof read the settings by separate code.
struct EncodeRule {
  std::string to;                                  ///< the rule's `to`
  Scheme scheme{};                                 ///< that is written: NVFP4, MXFP4, FP8 or MXFP8
  const OutputDialect* dialect = nullptr;          ///< likewise
  std::shared_ptr<const Rule> words;               ///< settings with every default, without modules
  DType weight_type = DType::kF32;                 ///< see QuantizedGroup::set_weight_type
  bool divides = false;                            ///< the global scale that is written is a divisor
  bool prune = false;                              ///< prune to 2:4 before, if not solved
  std::optional<PrunePattern> pattern{};           ///< if solved
  std::shared_ptr<const Statistics> statistics{};  ///< by which weights are chosen; null: none
  std::shared_ptr<const EncodedBefore> encoded{};  ///< groups that were solved by them before; null: none
  int sweeps = -1;                                 ///< as Rule::sweeps
  std::shared_ptr<const MaskFile> masks{};         ///< that prune; null: masks are chosen
  /// NVFP4 of the source is solved again under its own names and scales of the matrix and of inputs.
  bool in_place = false;
  /// Then a gate and its up get the larger of their global scales.
  bool folds_pairs = false;

  bool is_nvfp4() const { return scheme.format->global_scale; }
  bool is_mx() const { return scheme.format->group == kMxGroup || scheme.is_mxfp8(); }
  /// FP8 with a scale a tensor, row or block.
  bool is_tiled() const { return !is_nvfp4() && !is_mx(); }
  /// True if a matrix has the source's codes and block scales, except for codes that its mask drops.
  bool masks_codes(const EncodedMatrix& matrix) const;
  /// True if weights of a matrix that is not solved are pruned before they are quantized.
  bool prunes_weights(const EncodedMatrix& matrix) const;
  /// Weights along K in a group; K must be a multiple of it.
  int64_t group() const { return is_nvfp4() ? kGroup : is_mx() ? kMxGroup : 1; }
  /// Rows and columns that share an FP8 scale, of a matrix of that size.
  struct Tile {
    int64_t rows, cols;
  };
  Tile tile(int64_t rows, int64_t k) const;
  /// casts(): true if scales are chosen so that values of sources in four bits stay the same. is_strict():
  /// true if all values of quantized sources must.
  bool casts() const { return words->exact != Exact::kOff; }
  bool is_strict() const { return words->exact == Exact::kStrict; }
};
/// The format that the rule writes: "FP8", "MXFP8", "MXFP4" or "NVFP4".
const char* encoded_name(const EncodeRule& rule);

/// One matrix that is quantized: some rows of one expert of a module of the source. Row i is the expert's row
/// `first + i * step`.
struct EncodedMatrix {
  std::string name;  ///< of the module that is written: "model.layers.0.mlp.experts.3.gate_proj"
  std::shared_ptr<const Linear> source;
  int64_t expert;
  int64_t first, step, rows, k;
  float input_scale = 0;                                        ///< that is written; 0: none
  Solving solving = {};                                         ///< how it is solved by statistics
  std::optional<size_t> mask = {};                              ///< of EncodeRule::masks
  std::array<int, kEncodedParts> parts = {-1, -1, -1, -1, -1};  ///< of the group; -1: not written
  int part(EncodedPart p) const { return parts[static_cast<size_t>(p)]; }
};

/// Matrices that are quantized together: engines multiply them as one, so they share a global scale.
class QuantizedGroup : public Transformation {
 public:
  QuantizedGroup(EncodeRule rule, std::shared_ptr<const FixedGlobalScales> kept, const MemoryLimits& limits);
  /// Adds a matrix and a part of it.
  void add(EncodedMatrix matrix) { matrices_.push_back(std::move(matrix)); }
  void add_part(size_t matrix, EncodedPart part, TensorInfo info);
  /// Adds a tensor of the source that goes into it; a stack's tensor belongs to the first group.
  void consume(size_t tensor) { consumed_.push_back(tensor); }
  /// A matrix while it is planned: how it is solved, its mask, the input scale that is written.
  EncodedMatrix& matrix(size_t i) { return matrices_[i]; }
  /// Sets the rule that chooses input scales of NVFP4; null: there are none.
  void set_input_scales(std::shared_ptr<const InputScaleRule> rule) { input_scales_ = std::move(rule); }
  const std::shared_ptr<const InputScaleRule>& input_scales() const { return input_scales_; }
  /// Sets the type of the weights in the source: float32 if they were quantized or their types differ.
  void set_weight_type(DType type) { rule_.weight_type = type; }

  /// The note in twofour.json on a matrix whose weights were chosen by statistics or masks: an EncodedResult,
  /// and the solver.
  Json solved_note(size_t matrix, const EncodedResult& found) const;

  const EncodeRule& encode_rule() const { return rule_; }
  const FixedGlobalScales& kept() const { return *kept_; }
  const std::vector<EncodedMatrix>& matrices() const { return matrices_; }
  size_t part_count() const { return infos_.size(); }
  const TensorInfo& part_info(int part) const { return infos_[static_cast<size_t>(part)]; }
  /// Rows of a module that are read at once.
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
  /// Quantizing loses precision; the figures are reported.
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

/// Groups whose weights were chosen before, by the same rule and statistics. Safe from several threads.
class EncodedBefore {
 public:
  /// Receives the bytes of a part of the group in order, front to back.
  using Write = std::function<void(int part, std::span<const uint8_t> bytes)>;
  virtual ~EncodedBefore() = default;
  /// Writes all parts of a group and returns a result for each of its matrices. Returns nothing, and writes
  /// no byte, if it does not have the group.
  virtual std::optional<std::vector<EncodedResult>> read(const QuantizedGroup& group,
                                                         const Write& write) const = 0;
};

/// Weights read at once: their floats and results should stay in the L2 cache.
inline constexpr int64_t kQuantizeStripWeights = 128 << 10;
/// A worker's buffers, in bytes per weight of a row block: stored bytes twice, floats as read, pruned and
/// read back, and the bytes that are written.
inline constexpr uint64_t kQuantizeStripBytes = 24;

/// One of the matrices that a stack of experts holds for each expert.
struct StackPart {
  const char* leaf;  ///< "gate_proj"
  int64_t first, step, rows;
};
/// The matrices in the rows of a stack; empty if no naming rule knows it.
std::vector<StackPart> stack_parts(const Checkpoint& checkpoint, const std::string& name, int64_t rows);
/// "model.layers.0.mlp.experts.gate_up_proj" -> "model.layers.0.mlp.experts.3.gate_proj"
std::string expert_name(const std::string& stack, int64_t expert, const char* leaf);

}  // namespace twofour
