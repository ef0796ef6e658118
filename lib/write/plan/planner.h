#pragma once
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lib/recipe/artifact/manifest.h"
#include "lib/recipe/selection/output_matrix.h"
#include "lib/source/checkpoint/checkpoint.h"
#include "lib/source/checkpoint/linears.h"
#include "lib/write/plan/transformation.h"
#include "lib/write/plan/written_config.h"

namespace twofour {

class PlannedRules;

/// The plan that rules add to, one after the other. A tensor of the source belongs to the first
/// transformation that takes it. PlannedRules decides everything that depends on all rules.
class Planner {
 public:
  /// The input of planning; it outlives the plan.
  struct Input {
    const Checkpoint& source;
    const Manifest* written;  ///< twofour.json of a source that twofour wrote, else nullptr
    const MemoryLimits& limits;
    bool is_single;  ///< one rule decides all
    Findings& findings;
    Problems& problems;
    Author author = Author::kPrompt;  ///< of the rules, for messages
    ReadBy reader = ReadBy::kEngines;
  };
  explicit Planner(const Input& input);

  const Checkpoint& source;
  const Manifest* const written;
  const MemoryLimits limits;
  const bool is_single;
  Findings& findings;
  Problems& problems;
  WrittenConfig config;

  /// Begins a rule. People read its label as the reason of the transformations and kept tensors that follow.
  void begin_rule(const std::string& label) { labels_.push_back(label); }
  /// Adds a transformation, unless all of its sources are taken already. If only some are, that is a problem.
  template <class T>
  void add(std::unique_ptr<T> transformation) {
    if (takes(*transformation)) made_.add(std::move(transformation));
  }
  /// True if a rule took the tensor, to change or to keep it: later rules ignore it.
  bool is_taken(size_t tensor) const { return taken_[tensor] || kept_[tensor] != 0; }
  /// True if a transformation took the tensor.
  bool is_planned(size_t tensor) const { return taken_[tensor]; }
  /// Notes that a rule keeps a tensor.
  void keep(size_t tensor) { kept_[tensor] = static_cast<uint16_t>(labels_.size()); }

  /// Every linear of the source, in natural order; found by the first call. Modules with tensors that
  /// disagree become problems then.
  const std::vector<Linear>& linears();
  /// The number of layers by config.json; layers that predict further tokens follow them.
  int64_t layers() const { return layers_; }
  /// The type that a dialect requires for all FP8 scales, if no further rule takes experts: experts that no
  /// rule took are as in the source. Nothing: each scale has its own type.
  std::optional<DType> fp8_scale_type(const OutputDialect& dialect);
  /// Asks for a warning about experts that no rule takes.
  void watch_experts(const ExpertsLeft& which);

  /// Ends the rules. Tensors that no rule took can be planned from now on.
  PlannedRules end_rules();

 private:
  friend class PlannedRules;
  /// Takes the sources of a transformation; false if all of them are taken already.
  bool takes(Transformation& transformation);
  const std::string& label_of(const std::vector<size_t>& sources) const;

  Transformations made_;
  std::vector<bool> taken_;
  std::vector<uint16_t> kept_;       ///< the number of labels when a rule kept the tensor; 0: none did
  std::vector<std::string> labels_;  ///< the last one counts
  std::optional<std::vector<Linear>> linears_;
  const int64_t layers_;
  std::optional<ExpertsLeft> watched_;
};

/// The plan after all rules: the rest of the source, and the decisions that depend on all rules.
class PlannedRules {
 public:
  Planner& rest;  ///< for tensors that no rule took
  /// The type of all FP8 scales of the output, if its dialect requires one and engines read it.
  const std::optional<DType> fp8_scale_type;

  /// The linears of the source if a rule asked for them, else none.
  std::span<const Linear> known_linears() const;
  /// True if rules changed number formats and left no linear quantized.
  bool quantizes_nothing() const { return rest.config.quantizes_nothing(); }
  /// Leaves a tensor out of the output, as part of a transformation that can drop it.
  void drop(size_t tensor);
  /// The config files, once the rest is planned. Throws Error if none can describe everything that the rules
  /// make.
  ConfigFiles config_files() { return rest.config.files(fp8_scale_type); }
  Transformations take() { return std::move(rest.made_); }

 private:
  friend class Planner;
  PlannedRules(Planner& planner, std::optional<DType> type) : rest(planner), fp8_scale_type(type) {}
};

}  // namespace twofour
