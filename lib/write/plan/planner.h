#pragma once
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lib/recipe/artifact/manifest.h"
#include "lib/recipe/selection/output_matrix.h"
#include "lib/source/checkpoint/checkpoint.h"
#include "lib/source/linears/linears.h"
#include "lib/write/plan/transformation.h"
#include "lib/write/plan/written_config.h"

namespace twofour {

class PlannedRules;

/// The plan, to which rules add transformations one after the other. A tensor of the source belongs to the
/// first transformation that takes it. PlannedRules makes the decisions that depend on all rules.
class Planner {
 public:
  /// The input of planning. It outlives the plan.
  struct Input {
    const Checkpoint& source;
    const Manifest* written;  ///< twofour.json of the source if twofour wrote the source, otherwise null
    const MemoryLimits& limits;
    bool is_single;  ///< one rule decides about all modules
    Findings& findings;
    Problems& problems;
    Author author = Author::kPrompt;  ///< the author of the rules, for messages
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

  /// Begins a rule. `label` is the reason, for messages, of the transformations and kept tensors that follow.
  void begin_rule(const std::string& label) { labels_.push_back(label); }
  /// Adds a transformation. Drops it if other transformations took all of its sources. It is a problem if
  /// they took only some of them.
  template <class T>
  void add(std::unique_ptr<T> transformation) {
    if (takes(*transformation)) made_.add(std::move(transformation));
  }
  /// True if a rule took the tensor, either to change it or to keep it. Later rules ignore such a tensor.
  bool is_taken(size_t tensor) const { return taken_[tensor] || kept_[tensor] != 0; }
  /// True if a transformation took the tensor.
  bool is_planned(size_t tensor) const { return taken_[tensor]; }
  /// True if the output depends on the meaning of a tensor: a transformation took it, or the tensor has codes
  /// of a module that a new configuration describes.
  bool is_understood(size_t tensor) const;
  /// Notes that a rule keeps a tensor.
  void keep(size_t tensor) { kept_[tensor] = static_cast<uint16_t>(labels_.size()); }

  /// Every linear of the source, in natural order. The first call finds them, and adds a problem for each
  /// module whose tensors disagree.
  const std::vector<Linear>& linears();
  /// The number of layers according to config.json. Layers that predict further tokens come after these.
  int64_t layers() const { return layers_; }
  /// The type that a dialect requires for all FP8 scales. Empty if each scale keeps its own type. It assumes
  /// that no further rule takes experts. Experts that no rule took stay as in the source.
  std::optional<DType> fp8_scale_type(const OutputDialect& dialect);
  /// Requests a warning about experts that no rule takes.
  void watch_experts(const ExpertsLeft& which);

  /// Ends the rules. From now on, tensors that no rule took can be planned.
  PlannedRules end_rules();

 private:
  friend class PlannedRules;
  /// Takes the sources of a transformation. Returns false if all of them were taken before.
  bool takes(Transformation& transformation);
  const std::string& label_of(const std::vector<size_t>& sources) const;

  Transformations made_;
  std::vector<bool> taken_;
  std::vector<uint16_t> kept_;       ///< the size of labels_ when a rule kept the tensor; 0 if no rule kept
                                     ///< it
  std::vector<std::string> labels_;  ///< the last label is the current one
  std::optional<std::vector<Linear>> linears_;
  const int64_t layers_;
  std::optional<ExpertsLeft> watched_;
};

/// The plan after all rules. It plans the tensors that no rule took, and makes the decisions that depend on
/// all rules.
class PlannedRules {
 public:
  Planner& rest;  ///< plans tensors that no rule took
  /// The type of all FP8 scales of the output. It is set if the dialect requires one and engines read the
  /// output.
  const std::optional<DType> fp8_scale_type;

  /// The linears of the source if a rule asked for them. Otherwise empty.
  std::span<const Linear> known_linears() const;
  /// True if rules changed number formats and left no linear quantized.
  bool quantizes_nothing() const { return rest.config.quantizes_nothing(); }
  /// Leaves a tensor out of the output. A transformation that can drop it takes it.
  void drop(size_t tensor);
  /// The config files. Call this after all tensors are planned. Throws Error if no configuration can describe
  /// everything that the rules make.
  ConfigFiles config_files() { return rest.config.files(fp8_scale_type); }
  Transformations take() { return std::move(rest.made_); }

 private:
  friend class Planner;
  PlannedRules(Planner& planner, std::optional<DType> type) : rest(planner), fp8_scale_type(type) {}
};

}  // namespace twofour
