#pragma once
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lib/artifact/manifest.h"
#include "lib/checkpoint/checkpoint.h"
#include "lib/checkpoint/linears.h"
#include "lib/plan/transformation.h"
#include "lib/plan/written_config.h"
#include "lib/selection/output_matrix.h"

namespace twofour {

class PlannedRules;

/// What rules plan into, one after the other. A tensor of the source belongs to the first transformation that
/// takes it. What depends on all rules is in PlannedRules.
class Planner {
 public:
  /// What there is before any rule; it outlives what is planned.
  struct Input {
    const Checkpoint& source;
    const Manifest* written;  ///< what twofour.json says of a source that twofour wrote, else nullptr
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

  /// Begins a rule. A label is what people read as the reason of transformations that are added and tensors
  /// that are kept from now on.
  void begin_rule(const std::string& label) { labels_.push_back(label); }
  /// Adds a transformation, unless all of its sources are taken already. Some of them are a problem.
  template <class T>
  void add(std::unique_ptr<T> transformation) {
    if (takes(*transformation)) made_.add(std::move(transformation));
  }
  /// Whether a rule took a tensor, to change or to keep it: later rules leave it alone.
  bool is_taken(size_t tensor) const { return taken_[tensor] || kept_[tensor] != 0; }
  /// Whether a transformation has it.
  bool is_planned(size_t tensor) const { return taken_[tensor]; }
  /// A rule keeps a tensor.
  void keep(size_t tensor) { kept_[tensor] = static_cast<uint16_t>(labels_.size()); }

  /// Every linear of the source, in natural order; found when first asked for. Modules with tensors that
  /// disagree are problems then.
  const std::vector<Linear>& linears();
  /// The source's layers, as config.json counts them; beyond them are those that predict further tokens.
  int64_t layers() const { return layers_; }
  /// The type that a dialect wants of all FP8 scales, if no further rule takes experts: those that rules have
  /// not taken are as in the source. Nothing: each its own.
  std::optional<DType> fp8_scale_type(const OutputDialect& dialect);
  /// Experts that no rule takes are worth a warning.
  void watch_experts(const ExpertsLeft& which);

  /// Ends the rules. What no rule took can be planned from now on.
  PlannedRules end_rules();

 private:
  friend class PlannedRules;
  /// Takes the sources of a transformation; false where all of them are taken already.
  bool takes(Transformation& transformation);
  const std::string& label_of(const std::vector<size_t>& sources) const;

  Transformations made_;
  std::vector<bool> taken_;
  std::vector<uint16_t> kept_;       ///< by which rule: how many labels there were; 0: none
  std::vector<std::string> labels_;  ///< the last one counts
  std::optional<std::vector<Linear>> linears_;
  const int64_t layers_;
  std::optional<ExpertsLeft> watched_;
};

/// All rules, planned: what is left of the source, and what only all of them together decide.
class PlannedRules {
 public:
  Planner& rest;  ///< for what no rule took
  /// The type that all FP8 scales of the output have, where its dialect wants one and engines read it.
  const std::optional<DType> fp8_scale_type;

  /// The linears of the source, where a rule asked for them; else none.
  std::span<const Linear> known_linears() const;
  /// Whether rules changed number formats and left no linear quantized.
  bool quantizes_nothing() const { return rest.config.quantizes_nothing(); }
  /// Leaves a tensor out of the output, as part of a transformation that can.
  void drop(size_t tensor);
  /// The config files, once the rest is planned. Throws Error where none describe all that the rules make.
  ConfigFiles config_files() { return rest.config.files(fp8_scale_type); }
  Transformations take() { return std::move(rest.made_); }

 private:
  friend class Planner;
  PlannedRules(Planner& planner, std::optional<DType> type) : rest(planner), fp8_scale_type(type) {}
};

}  // namespace twofour
