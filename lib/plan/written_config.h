#pragma once
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lib/checkpoint/checkpoint.h"
#include "lib/checkpoint/linears.h"
#include "lib/checkpoint/quantization_said.h"
#include "lib/dialects/output_dialect.h"
#include "lib/findings/finding.h"
#include "lib/findings/problems.h"
#include "lib/plan/plan.h"
#include "lib/words/rule_words.h"

namespace twofour {

/// Who reads what is written: engines, or layouts, whose source it is. That keeps the type of FP8 scales that
/// stay, and the format of drafts.
enum class ReadBy { kEngines, kLayouts };

/// The configuration of the output, as rules and what no rule took add to it.
class WrittenConfig {
 public:
  WrittenConfig(const Checkpoint& source, Author author, ReadBy reader, Findings& findings,
                Problems& problems);

  /// The dialect of the whole output, once a rule has chosen it; nullptr before.
  const OutputDialect* dialect() const { return dialect_; }
  /// Throws Error where another rule chose another.
  void set_dialect(const OutputDialect& dialect);
  bool is_for_layouts() const { return reader_ == ReadBy::kLayouts; }

  /// It is written anew: number formats change.
  void rewrite() { is_rewritten_ = true; }
  bool is_rewritten() const { return is_rewritten_; }
  /// A linear of the output, the tensor of the source's weights and its scheme, of floats where it is not
  /// quantized.
  void add(std::string module, size_t weight, const Scheme& scheme);
  /// A linear that keeps its format, in the source's own words where they are of this dialect.
  void add_kept(const Linear& linear);
  bool has(size_t weight) const { return described_[weight]; }
  /// A glob or name of what stays unquantized, beside linears.
  void leave(std::string module) { left_.push_back(std::move(module)); }
  /// The schemes of quantized routed experts that were added, but those of drafts.
  std::vector<Scheme> expert_schemes() const;

  /// Entries in the words of the source, translated. They are written where every engine reads each module by
  /// them as it is stored; else the configuration is written anew from the modules.
  void suggest(ConfigEntries entries) { suggested_ = std::move(entries); }
  /// The files that describe what is written, where one rule makes all of it.
  void set_texts(std::map<std::string, std::string> texts);
  /// Modules of the same layout and pattern are one group, whichever rules made them.
  void add_layout(LayoutGroup group);
  /// The source's config stays true.
  void keep() { is_kept_ = true; }
  /// No linear of the output is quantized, and texts are set that say so.
  void quantize_nothing() { quantizes_nothing_ = true; }

 private:
  friend class PlannedRules;
  /// Whether rules changed number formats and left no linear quantized.
  bool quantizes_nothing() const {
    return quantizes_nothing_ || (is_rewritten_ && model_.entries.empty() && layouts_.empty());
  }
  ConfigFiles files(std::optional<DType> fp8_scale_type);
  void add(std::string module, size_t weight, const Scheme& scheme, Json entry);
  ConfigEntries entries();
  void note_odd_scale_types(std::optional<DType> wanted);
  void refuse_odd_drafts();
  /// Adds a problem where a loader would not find the formats that are written.
  ConfigEntries checked(ConfigEntries entries);

  const Checkpoint& source_;
  const Author author_;
  const ReadBy reader_;
  Findings& findings_;
  Problems& problems_;
  const int64_t layers_;
  const OutputDialect* dialect_ = nullptr;
  WrittenModel model_;
  std::vector<Scheme> schemes_;         ///< of model_.entries
  std::vector<bool> described_;         ///< by the tensor of weights
  std::optional<SourceGroups> groups_;  ///< of the source's own configuration
  std::vector<std::string> left_;
  std::vector<LayoutGroup> layouts_;
  std::optional<ConfigEntries> suggested_;
  std::optional<std::map<std::string, std::string>> texts_;
  bool is_rewritten_ = false, is_kept_ = false, quantizes_nothing_ = false;
};

}  // namespace twofour
