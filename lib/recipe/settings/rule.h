#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/naming.h"
#include "lib/base/findings/options.h"
#include "lib/base/names/pattern.h"
#include "lib/recipe/settings/values.h"
#include "lib/recipe/statistics/mask_file.h"
#include "lib/recipe/statistics/statistics.h"

namespace twofour {

class EncodedBefore;

/// Scales that are given instead of computed, by the names of modules, with stacks split into experts. They
/// are either global scales of weights, reused from another checkpoint when weights are quantized again, or
/// input scales.
struct FixedGlobalScales {
  bool divides = false;  ///< as in compressed-tensors; otherwise they multiply
  struct Scale {
    std::string name;
    uint32_t bits;  ///< float32
  };
  std::vector<Scale> scales = {};  ///< sorted by name
  void sort();
  const Scale* find(std::string_view name) const;  ///< null if absent
};

/// The modules that a command works on.
struct Selection {
  std::vector<NamePattern> include;  ///< restricts the default set, unless empty
  std::vector<NamePattern> exclude;
  std::vector<NamePattern> also;  ///< adds to the default set
  /// If true, modules of the default set are chosen although no role names them, and `include` restricts that
  /// set. If false, only `also` and `roles` choose modules.
  bool from_default = true;
  std::vector<ModuleRole> roles = {};  ///< adds the modules that have one of these roles
  Chosen<DraftExperts> draft_experts = {};
  bool is_match = false;  ///< comes from a recipe file; only messages use it
};

/// The keys of rule settings that appear in messages.
namespace keys {
inline constexpr std::string_view kTo = "to", kPattern = "pattern", kDialect = "dialect",
                                  kGranularity = "granularity", kBlock = "block", kScaleDtype = "scale_dtype",
                                  kOddBlocks = "odd_blocks", kExact = "exact", kArithmetic = "arithmetic",
                                  kBlockScale = "block_scale", kMethod = "method", kSweeps = "sweeps",
                                  kShrink = "shrink", kScaleSearch = "scale_search",
                                  kInputScale = "input_scale", kOneInputScale = "one_input_scale_a_layer",
                                  kFold = "fold", kDraftExperts = "draft_experts",
                                  kKeepGlobalScale = "keep_global_scale";
}  // namespace keys

/// A rule, which chooses modules and determines their new format. make_plan() completes omitted settings.
/// rule_settings.h has a row for each field.
struct Rule {
  std::string to = "v7";                 ///< a layout or another method, see lib/write/plan/method.h
  Chosen<PrunePattern> pattern = {};     ///< for prune; also for quantize, which prunes before encoding
  std::string dialect = {};              ///< for nvfp4, fp8 and quantize; of the output
  Chosen<Granularity> granularity = {};  ///< fp8
  Chosen<WeightBlock> block = {};        ///< fp8 by blocks
  Chosen<DType> scale_dtype = {};        ///< for fp8; the type of the scales
  Chosen<OddBlocks> odd_blocks = {};     ///< fp8 by blocks
  Chosen<Exact> exact = {};              ///< for quantized sources
  Chosen<Arithmetic> arithmetic = {};    ///< for quantize; by default the dialect's
  Chosen<BlockScale> block_scale = {};   ///< quantize
  Chosen<ZeroBlock> zero_block = {};     ///< quantize
  FixedGlobalScales kept = {};           ///< for quantize; given global scales
  std::string keep_global_scale = {};    ///< the checkpoint that `kept` comes from, before it is read
  Chosen<SolveBy> method = {};           ///< for quantize; by default the best that the statistics permit
  int sweeps = -1;                       ///< sweeps of descent; below 0, the method's default
  std::optional<double> shrink = {};     ///< quantize: by default default_shrink()
  int scale_search = -1;                 ///< quantize: below 0, the default
  bool keeps_absent = false;             ///< settings that are absent mean what they meant in 0.2.0
  bool strict_statistics = false;        ///< refuse statistics of other weights; decides no byte
  bool measures_rounding = false;        ///< compute OutputLoss::rounded_loss; decides no byte
  bool awaits_statistics = false;        ///< statistics are collected before weights are chosen
  std::string statistics_hash = {};      ///< XXH3-128 of the file; empty without a file
  std::string statistics_from = {};      ///< device and instruction set that collected them, if known
  std::string statistics_input = {};     ///< XXH3-128 of the model's input, if known
  std::shared_ptr<const Statistics> statistics = {};  ///< the file, see open_statistics()
  std::shared_ptr<const EncodedBefore> encoded = {};  ///< groups that are encoded already; may be null
  std::string mask_hash = {};                  ///< XXH3-128 of a file of masks; masks are computed if empty
  std::shared_ptr<const MaskFile> masks = {};  ///< the file, see open_masks()
  InputScale input_scale = {};
  FixedGlobalScales input_scales = {};   ///< multipliers, for "given"
  bool one_input_scale_a_layer = false;  ///< experts of a layer share the largest scale, by projection
  Selection selection = {};
  Fold fold = Fold::kLarger;
  std::string label = {};           ///< "rule 2 (experts)" of a recipe file; for messages only
  Author author = Author::kPrompt;  ///< for messages only

  /// True if there are statistics now or later.
  bool has_statistics() const { return awaits_statistics || !statistics_hash.empty(); }
  /// True if weights are chosen by statistics.
  bool solves() const { return has_statistics() && method != SolveBy::kMagnitude; }
  SolvingSettings solving_settings() const {
    return {method.value(), sweeps, shrink,
            scale_search < 0 ? std::nullopt : std::optional<int>(scale_search)};
  }
  /// A setting as the rule's author writes it.
  std::string name(std::string_view key) const { return spelled(key, author); }
  std::string name(std::string_view key, std::string_view value) const { return spelled(key, value, author); }
};

}  // namespace twofour
