#pragma once
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lib/base/findings/finding.h"
#include "lib/base/findings/problems.h"
#include "lib/recipe/settings/rule_settings.h"
#include "lib/source/checkpoint/checkpoint.h"
#include "lib/source/config/configured_quantization.h"
#include "lib/source/dialects/output_dialect.h"
#include "lib/source/linears/linears.h"
#include "lib/write/plan/plan.h"

namespace twofour {

/// The reader of the output: an engine, or the packer of a layout. A packer's input keeps the types of FP8
/// scales and the formats of drafts.
enum class ReadBy { kEngines, kLayouts };

/// The configuration of the output. Rules, and tensors that no rule took, add to it.
class WrittenConfig {
 public:
  WrittenConfig(const Checkpoint& source, Author author, ReadBy reader, Findings& findings,
                Problems& problems);

  /// The dialect of the whole output. Null before a rule has chosen it.
  const OutputDialect* dialect() const { return dialect_; }
  /// Throws Error if another rule chose a different dialect.
  void set_dialect(const OutputDialect& dialect);
  bool is_for_layouts() const { return reader_ == ReadBy::kLayouts; }

  /// Notes that number formats change, so that a new configuration is written.
  void rewrite() { is_rewritten_ = true; }
  bool is_rewritten() const { return is_rewritten_; }
  /// Adds a linear of the output. `weight` is the source's tensor with its weights. `scheme` is a scheme of
  /// floats if the linear is not quantized.
  void add(std::string module, size_t weight, const Scheme& scheme);
  /// Adds a linear that keeps its format. It keeps the source's own entry if source and output have the same
  /// dialect.
  void add_kept(const Linear& linear);
  bool has(size_t weight) const { return described_[weight]; }
  /// Adds a glob or name of modules that stay unquantized. It is for modules that are not linears.
  void leave(std::string module) { left_.push_back(std::move(module)); }
  /// The schemes of the quantized routed experts that were added, without drafts' schemes.
  std::vector<Scheme> expert_schemes() const;

  /// Suggests the source's entries after translation. They are written if every engine, reading them, finds
  /// each module as it is stored. Otherwise a new configuration is made from the modules.
  void suggest(ConfigEntries entries) { suggested_ = std::move(entries); }
  /// Sets the files that describe the output. This is for a rule that makes the whole output.
  void set_texts(std::map<std::string, std::string> texts);
  /// Adds a layout. Modules of the same layout and pattern form one group, even if several rules made them.
  void add_layout(LayoutGroup group);
  /// Notes that the entry of layouts names the import by which transformers loads it.
  void name_import() { names_import_ = true; }
  /// Notes that the source's configuration also describes the output.
  void keep() { is_kept_ = true; }
  /// Notes that no linear of the output is quantized, and that the texts of set_texts() state this.
  void quantize_nothing() { quantizes_nothing_ = true; }

 private:
  friend class PlannedRules;
  /// True if rules changed number formats and no linear is quantized afterwards.
  bool quantizes_nothing() const {
    return quantizes_nothing_ || (is_rewritten_ && model_.entries.empty() && layouts_.empty());
  }
  ConfigFiles files(std::optional<DType> fp8_scale_type);
  void add(std::string module, size_t weight, const Scheme& scheme, Json entry);
  ConfigEntries entries();
  void note_odd_scale_types(std::optional<DType> wanted);
  void refuse_odd_drafts();
  /// Adds a problem if a loader would not find the formats that are written.
  ConfigEntries checked(ConfigEntries entries);

  const Checkpoint& source_;
  const Author author_;
  const ReadBy reader_;
  Findings& findings_;
  Problems& problems_;
  const int64_t layers_;
  const OutputDialect* dialect_ = nullptr;
  WrittenModel model_;
  std::vector<bool> described_;         ///< by index of the weights' tensor; true if a linear with these
                                        ///< weights was added
  std::optional<SourceGroups> groups_;  ///< the groups of the source's own configuration
  std::vector<std::string> left_;
  std::vector<LayoutGroup> layouts_;
  std::optional<ConfigEntries> suggested_;
  std::optional<std::map<std::string, std::string>> texts_;
  bool is_rewritten_ = false, is_kept_ = false, quantizes_nothing_ = false, names_import_ = false;
};

}  // namespace twofour
