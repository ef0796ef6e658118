#pragma once
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/artifact/manifest.h"
#include "lib/artifact/recipe.h"
#include "lib/checkpoint/checkpoint.h"
#include "lib/checkpoint/linears.h"
#include "lib/checkpoint/quantization_said.h"
#include "lib/dialects/loader_lookup.h"
#include "lib/dialects/output_dialect.h"
#include "lib/findings/finding.h"
#include "lib/findings/problems.h"
#include "lib/plan/plan.h"
#include "lib/selection/output_matrix.h"
#include "lib/words/rule_words.h"

namespace twofour {

/// What rules plan into. A tensor of the source belongs to the first transformation that takes it.
class Planner {
 public:
  /// `written` is what twofour.json says of a source that twofour wrote, else nullptr. `is_single`: one rule
  /// decides all.
  Planner(const Checkpoint& source, const Manifest* written, const MemoryLimits& limits, bool is_single,
          Findings& findings, Problems& problems);

  const Checkpoint& source;
  const Manifest* const written;
  const MemoryLimits limits;
  const bool is_single;
  Author author = Author::kPrompt;  ///< of the rules, for messages
  Findings& findings;
  Problems& problems;

  /// Begins a rule, or with no label what no rule takes. A label is what people read as the reason of
  /// transformations that are added and tensors that are kept from now on.
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
  /// Leaves a tensor out of the output, as part of a transformation that can.
  void drop(size_t tensor);
  Transformations take() { return std::move(made_); }

  /// Every linear of the source, in natural order; found when first asked for. Modules with tensors that
  /// disagree are problems then.
  const std::vector<Linear>& linears();
  /// Those of linears(), where a rule asked for them; else none.
  std::span<const Linear> known_linears() const {
    return linears_ ? std::span<const Linear>(*linears_) : std::span<const Linear>();
  }
  /// The source's layers, as config.json counts them; beyond them are those that predict further tokens.
  int64_t layers() const { return layers_; }

  /// The dialect of the whole output, once a rule has chosen it; nullptr before.
  const OutputDialect* dialect() const { return dialect_; }
  /// Throws Error where another rule chose another.
  void set_dialect(const OutputDialect& dialect);
  /// The configuration is written anew: number formats change.
  void rewrite_formats() { rewrites_formats_ = true; }
  bool rewrites_formats() const { return rewrites_formats_; }
  /// Experts that no rule takes are worth a warning.
  void watch_experts(const ExpertsLeft& which);
  /// That warning, after all rules.
  void warn_of_left_experts();

  /// A linear of the output, the tensor of the source's weights and its scheme, of floats where it is not
  /// quantized.
  void write(std::string module, size_t weight, const Scheme& scheme);
  /// A linear that keeps its format, in the source's own words where they are of this dialect.
  void write_kept(const Linear& linear);
  bool is_written(size_t weight) const { return described_[weight]; }
  /// The schemes of quantized routed experts but those of drafts; what rules have not taken is as in the
  /// source.
  std::vector<Scheme> expert_schemes();
  /// The type that all FP8 scales of the output have, where its dialect wants one. Found when first asked
  /// for, once all rules are planned.
  std::optional<DType> fp8_scale_type();
  /// What is planned is the source of layouts: FP8 that stays keeps its scales, and drafts their format.
  void show_to_layouts() {
    shows_layouts_ = true;
    one_scale_type_.emplace();
  }
  /// A glob or name of what stays unquantized, beside linears.
  void leave(std::string module) { left_.push_back(std::move(module)); }

  /// No linear of the output is quantized, and texts are set that say so.
  void quantize_nothing() { quantizes_nothing_ = true; }
  /// Whether rules changed number formats and left no linear quantized.
  bool quantizes_nothing() const {
    return quantizes_nothing_ || (rewrites_formats_ && written_.entries.empty() && layouts_.empty());
  }
  /// Entries in the words of the source, translated. They are written where every engine reads each module by
  /// them as it is stored; else the configuration is written anew from the modules.
  void suggest(ConfigEntries entries) { suggested_ = std::move(entries); }
  /// The config files that describe what is written, where one rule makes all of it.
  void set_texts(std::map<std::string, std::string> texts);
  /// Modules of the same layout and pattern are one group, whichever rules made them.
  void add_layout(LayoutGroup group);
  const std::vector<LayoutGroup>& layouts() const { return layouts_; }
  /// The source's config stays true.
  void keep_config() { keeps_config_ = true; }
  /// Throws Error where no config describes all that the rules make.
  std::map<std::string, std::string> texts();
  bool keeps_config() const { return keeps_config_ && layouts_.empty() && !rewrites_formats_; }
  /// hf_quant_config.json of the checkpoint that an artifact in layouts shows, where that is not the
  /// source's.
  const std::optional<Json>& shown_hf_quant_config() const { return shown_hf_quant_config_; }

 private:
  /// Takes the sources of a transformation; false where all of them are taken already.
  bool takes(Transformation& transformation);

  Transformations made_;
  std::vector<bool> taken_, described_;
  std::vector<uint16_t> kept_;       ///< by which rule: how many labels there were; 0: none
  std::vector<std::string> labels_;  ///< the last one counts
  bool rewrites_formats_ = false, quantizes_nothing_ = false;
  const std::string& label_of(const std::vector<size_t>& sources) const;
  void write(std::string module, size_t weight, const Scheme& scheme, Json entry);
  ConfigEntries written_entries();
  ConfigEntries quantization_entries();
  void note_odd_scale_types();
  void refuse_odd_drafts();
  /// Adds a problem where a loader would not find the formats that are written.
  ConfigEntries checked(ConfigEntries entries);

  std::vector<LayoutGroup> layouts_;
  std::optional<SourceGroups> groups_;  ///< of the source's own configuration
  std::optional<std::vector<Linear>> linears_;
  int64_t layers_;
  const OutputDialect* dialect_ = nullptr;
  WrittenModel written_;
  std::vector<Scheme> schemes_;  ///< of written_.entries
  std::optional<std::optional<DType>> one_scale_type_;
  bool shows_layouts_ = false;
  std::vector<std::string> left_;
  std::optional<ConfigEntries> suggested_;
  std::optional<std::map<std::string, std::string>> texts_;
  std::optional<Json> shown_hf_quant_config_;
  bool keeps_config_ = false;
  std::optional<ExpertsLeft> watched_;
};

/// How the modules of a rule change: the rule's words with their types.
class Method {
 public:
  virtual ~Method() = default;
  /// Plans the transformations of the modules that the rule's selection chooses, and completes the rule's
  /// words. Throws Error on a source or selection that the method cannot take; what is wrong with single
  /// tensors goes into the planner's problems.
  virtual void plan(Rule& rule, Planner& planner) const = 0;
  /// Plans what no rule took, where number formats change.
  virtual void finish(Planner&) const {}
  /// What "twofour.layout" in the files' headers says: the layout, or the format of a checkpoint.
  virtual std::string file_format(const Rule& rule) const { return rule.to; }
  /// What it makes, in a few words for people; the rule's words are complete.
  virtual std::string summary(const Rule& rule) const {
    return rule.pattern.empty() ? rule.to : std::string(rule.pattern.text());
  }
  /// Whether a source's quantization entries must be ones that can be kept beside another.
  virtual bool rewrites_config() const { return true; }
};

/// A row of the table of methods.
struct MethodRow {
  std::string_view name;  ///< as Rule::to
  unsigned kind;          ///< MethodKind: which words of rules it takes; 0: none
  /// Gives the rule's words their types and completes them. Throws Error on words that no option has.
  std::unique_ptr<Method> (*make)(Rule& rule);
};

/// The methods, layouts first; tests add their own.
std::vector<MethodRow>& methods();
/// The row of that name; nullptr if there is none.
const MethodRow* find_method(std::string_view name);
/// Throws Error where a rule's method does not take a word, said with that value, and on a name that no
/// method has.
void check_taken(const Rule& rule, const RuleWord& word, std::string_view value);
/// Throws Error on a name that no method has, on words that it has no use for and on words that no option
/// has.
std::unique_ptr<Method> make_method(Rule& rule);

}  // namespace twofour
