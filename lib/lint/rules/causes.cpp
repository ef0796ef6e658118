#include "lib/lint/rules/causes.h"

#include <algorithm>
#include <map>

#include "formats/module_names.h"
#include "lib/base/names/pattern.h"
#include "lib/lint/rules/baseline.h"

namespace twofour {
namespace {

/// The place that a cause and its consequence must have in common.
enum class Tie {
  kDirectory,  ///< nothing but the directory
  kFile,       ///< the same file
  kModule,     ///< the same module, or one module is below the other
  kKey,        ///< a key of the config: the cause's name or key is the consequence's key
};

/// A row states which rules report consequences of which others. Rules are given as globs of ids, separated
/// by spaces.
struct CauseRow {
  const char* cause;
  const char* file;  ///< file that the cause must be about; "": any
  Tie tie;
  const char* consequences;
};

/// Rules about things that are missing.
constexpr const char* kLacks = "*-missing missing-* incomplete-* unused-pattern";
/// Rules about names and configs. They compare a module with its description.
constexpr const char* kClaims =
    "no-quantization-config no-config config-* odd-* engine-* un*-ignored un*-pattern python-only-pattern "
    "quantized-* gate-up-order weight-term tied-head missing-input-scale";
/// Rules about the numbers in a module.
constexpr const char* kFigures =
    "suspicious-* unequal-* amax-* saturated-* subnormal-* zero-* *-swap manifest-hash";

/// The first row that matches a finding decides.
constexpr CauseRow kCauseRows[] = {
    {"unfinished-output", "", Tie::kDirectory,
     "missing-* *-missing incomplete-* bad-* file-size data-holes no-* index-* manifest-* dup* left*"},
    {"unfinished-download", "", Tie::kFile, "*"},
    {"unfinished-download", "", Tie::kDirectory,
     "missing-shard missing-sidecar no-tokenizer no-config no-index"},
    {"not-downloaded", "", Tie::kFile, "*"},
    {"missing-shard unreadable-file bad-header file-size data-holes", "", Tie::kFile,
     "manifest-hash not-finite"},
    // The index belongs to other files, or a file has a wrong name.
    {"missing-shard", "", Tie::kDirectory, "leftover-file"},
    {"bad-config not-downloaded unfinished-download duplicate-key no-config unreadable-file", "config.json",
     Tie::kDirectory, kClaims},
    {"bad-config not-downloaded unfinished-download duplicate-key unreadable-file", "hf_quant_config.json",
     Tie::kDirectory, kClaims},
    {"not-downloaded unfinished-download bad-config", "tokenizer_config.json", Tie::kDirectory,
     "no-tokenizer two-chat-templates"},
    {"bad-manifest unknown-layout no-manifest", "", Tie::kDirectory, "manifest-hash unknown-layout"},
    {"bad-index index-stale-tensor index-wrong-file index-incomplete", "", Tie::kFile, "index-total-size"},
    {"no-config", "", Tie::kDirectory, kClaims},
    {"odd-setting", "", Tie::kKey, "*"},
    {"layer-numbers", "", Tie::kDirectory,
     "config-dtype engine-* un*-ignored unused-pattern layer* mtp-missing tensor-* experts-*"},
    {"name-prefix", "", Tie::kDirectory,
     "no-quantization-config config-* engine-* un*-ignored unused-pattern *-missing missing-input-scale "
     "tensor-unknown quantized-* odd-setting impossible-setting layer* gate-up-order expert*"},
    {"expert-name", "", Tie::kModule, kLacks},
    {"layers-missing", "", Tie::kModule, "experts-missing head-missing incomplete-* index-* manifest-hash"},
    {"experts-missing mtp-missing head-missing incomplete-module missing-input-scale", "", Tie::kModule,
     "index-* manifest-hash gate-up-shape unused-pattern"},
    {"tensor-missing", "", Tie::kModule, "unused-pattern"},
    {"tensor-type", "", Tie::kModule,
     "incomplete-module module-shape config-* engine-* missing-* not-finite odd-numbers implausible-weights"},
    {"duplicate-tensor", "", Tie::kModule, "index-* manifest-hash"},
    {"leftover-file", "", Tie::kFile, "duplicate-tensor"},
    {"expert-shape module-shape", "", Tie::kModule, "gate-up-shape config-* engine-*"},
    {"no-quantization-config", "", Tie::kDirectory, "config-dtype engine-lookup"},
    {"config-group-size config-disagrees", "", Tie::kDirectory, "engine-lookup"},
    {"config-dtype unquantized-not-ignored unused-pattern", "", Tie::kModule, "engine-lookup"},
    {"not-finite bad-global-scale", "", Tie::kModule, kFigures},
    {"nibble-swap gate-up-swap", "", Tie::kModule, kFigures},
    {"bad-block-scale mxfp4-nan-scale", "", Tie::kModule, kFigures},
    {"zero-weights zero-scale", "", Tie::kModule, "suspicious-* amax-* subnormal-*"},
    {"suspicious-scale", "", Tie::kModule, "unequal-* amax-* saturated-* subnormal-*"},
    {"saturated-scales subnormal-scales", "", Tie::kModule, "amax-* unequal-*"},
};

/// Rules that report a file whose tensors cannot be read.
constexpr const char* kDamage =
    "not-downloaded unfinished-download missing-shard unreadable-file bad-header duplicate-key file-size";

/// For each rule in lint_rules(), true if one of these globs matches it.
std::vector<bool> rules_of(std::string_view globs) {
  std::vector<bool> taken(lint_rules().size());
  while (!globs.empty()) {
    const size_t end = std::min(globs.find(' '), globs.size());
    const NamePattern pattern{std::string(globs.substr(0, end))};
    for (size_t i = 0; i < taken.size(); ++i) taken[i] = taken[i] || pattern.matches(lint_rules()[i].id);
    globs.remove_prefix(std::min(end + 1, globs.size()));
  }
  return taken;
}

/// Returns the module of a tensor: its name without the last part, if modules have parts of that name.
/// Otherwise returns the name itself.
std::string module_named(const std::string& name) {
  const std::string_view part = leaf_of(name);
  const bool is_part = part.starts_with("weight") || part.ends_with("scale") || part.ends_with("bias") ||
                       part.ends_with("scale_2") || part.ends_with("scale_inv") || part == "qweight" ||
                       part == "qzeros" || part == "scales" || part == "g_idx" || part.ends_with("_comp") ||
                       part.ends_with("_meta") || part.ends_with("_packed") || part.ends_with("_weight") ||
                       part == "comp" || part == "meta";
  return std::string(is_part ? module_of(name) : name);
}

/// Returns the first element of a sorted map whose key is `name` or below it. For "a.b", the keys "a.b" and
/// "a.b.c" count, but not "a.bc".
template <class Map>
auto find_at_or_below(const Map& map, const std::string& name) {
  const auto at = map.find(name);
  if (at != map.end()) return at;
  const std::string prefix = name + ".";
  const auto below = map.lower_bound(prefix);
  return below != map.end() && std::string_view(below->first).starts_with(prefix) ? below : map.end();
}

/// The first finding of some rules for each property that other findings may share with it.
struct CauseIndex {
  std::vector<bool> consequences;
  Tie tie;
  std::optional<size_t> first;
  std::map<std::string, size_t, std::less<>> by_name;  ///< by file, module or key

  void add(size_t i, const LintFinding& f) {
    if (!first) first = i;
    if (tie == Tie::kFile && !f.file.empty()) by_name.emplace(f.file, i);
    if (tie == Tie::kModule && !f.name.empty()) by_name.emplace(module_named(f.name), i);
    if (tie != Tie::kKey) return;
    for (const std::string& key : {f.facts.key, f.name})
      if (!key.empty()) by_name.emplace(leaf_of(key), i);
  }

  std::optional<size_t> find(const LintFinding& f) const {
    const auto found = [&](std::string_view name) -> std::optional<size_t> {
      const auto at = by_name.find(name);
      return name.empty() || at == by_name.end() ? std::nullopt : std::optional(at->second);
    };
    switch (tie) {
      case Tie::kDirectory:
        return first;
      case Tie::kFile:
        return found(f.file);
      case Tie::kKey:
        return found(leaf_of(f.facts.key));
      case Tie::kModule:
        break;
    }
    if (f.name.empty()) return std::nullopt;
    const std::string module = module_named(f.name);
    if (const auto at = find_at_or_below(by_name, module); at != by_name.end()) return at->second;
    std::optional<size_t> above;
    any_above(module, [&](std::string_view name) { return (above = found(name)).has_value(); });
    return above;
  }
};

/// Finds the cause of each finding. A cause is given as its position among the findings.
class CauseFinder {
 public:
  CauseFinder(const std::vector<LintFinding>& findings, const std::vector<LostFile>& lost)
      : findings_(findings), lost_(lost) {
    index_rows();
    index_lost();
    count_sayings();
  }

  std::optional<size_t> find(size_t i) {
    const LintFinding& f = findings_[i];
    for (const auto& find : {&CauseFinder::stated, &CauseFinder::of_lost, &CauseFinder::of_rows}) {
      const auto cause = (this->*find)(f);
      if (cause && *cause != i) return cause;
    }
    return peer(i, f);
  }

 private:
  void index_rows() {
    for (const CauseRow& row : kCauseRows) {
      const std::vector<bool> causes = rules_of(row.cause);
      CauseIndex index{rules_of(row.consequences), row.tie, std::nullopt, {}};
      for (size_t r = 0; r < causes.size(); ++r)
        if (causes[r]) index.consequences[r] = false;  // a rule in both lists is a cause
      for (size_t i = 0; i < findings_.size(); ++i) {
        const LintFinding& f = findings_[i];
        if (causes[f.rule] && (*row.file == '\0' || f.file == row.file)) index.add(i, f);
      }
      if (index.first) rows_.push_back(std::move(index));
    }
  }

  void index_lost() {
    if (lost_.empty()) return;
    const std::vector<bool> damage = rules_of(kDamage);
    std::map<std::string_view, size_t> damaged;
    for (size_t i = 0; i < findings_.size(); ++i)
      if (damage[findings_[i].rule]) damaged.emplace(findings_[i].file, i);
    for (const LostFile& l : lost_) {
      const auto at = damaged.find(l.file);
      if (at == damaged.end()) continue;
      if (!any_) any_ = at->second;
      if (!l.tensors && !unknown_) unknown_ = at->second;
      if (!l.tensors) continue;
      for (const std::string& tensor : *l.tensors) lost_tensors_.emplace(tensor, at->second);
    }
  }

  /// Returns the cause that the check itself stated.
  std::optional<size_t> stated(const LintFinding& f) {
    if (f.facts.cause.empty()) return std::nullopt;
    if (stated_.empty()) {
      for (const LintFinding& other : findings_) stated_.try_emplace(other.facts.cause);
      for (auto& [rule, ties] : stated_) {
        const auto at = find_lint_rule(rule);
        for (const Tie tie : {Tie::kKey, Tie::kModule, Tie::kFile}) {
          CauseIndex index{{}, tie, std::nullopt, {}};
          for (size_t i = 0; at && i < findings_.size(); ++i)
            if (findings_[i].rule == *at) index.add(i, findings_[i]);
          ties.push_back(std::move(index));
        }
      }
    }
    for (const CauseIndex& index : stated_.at(f.facts.cause))
      if (const auto cause = index.find(f)) return cause;
    return std::nullopt;
  }

  /// Returns the finding about a lost file, if `f` is about one of its tensors.
  std::optional<size_t> of_lost(const LintFinding& f) {
    if (!any_) return std::nullopt;
    const std::string module = module_named(f.name);
    if (claims_[f.rule] && !module.empty()) {
      if (const auto itself = lost_tensors_.find(f.name); itself != lost_tensors_.end())
        return itself->second;
      // Only findings about the module itself count. Its neighbours are judged by their own tensors.
      const auto at = find_at_or_below(lost_tensors_, module);
      const bool own =
          at != lost_tensors_.end() && (at->first == module || module_named(at->first) == module);
      return own ? std::optional(at->second) : std::nullopt;
    }
    if (!lacks_[f.rule]) return std::nullopt;
    for (const std::string& name : {f.name, module}) {
      const auto at = name.empty() ? lost_tensors_.end() : find_at_or_below(lost_tensors_, name);
      if (at != lost_tensors_.end()) return at->second;
    }
    // A pattern, a key or the whole checkpoint does not belong to a single file.
    return is_loose_[f.rule] || f.name.empty() ? any_ : unknown_;
  }

  std::optional<size_t> of_rows(const LintFinding& f) {
    for (const CauseIndex& row : rows_) {
      if (!row.consequences[f.rule]) continue;
      if (const auto cause = row.find(f)) return cause;
    }
    return std::nullopt;
  }

  /// Counts findings by their messages without numbers. If many have the same message, they have one cause: a
  /// filter of names, for example, or one formula for all scales.
  void count_sayings() {
    for (const LintFinding& f : findings_) {
      if (f.facts.key.empty()) ++sayings_[finding_identity(lint_rules()[f.rule].id, "", f.message)].count;
    }
  }

  /// Returns the first finding that expects the same value of the same key. If `f` has no key, returns the
  /// first of many findings with the same message.
  std::optional<size_t> peer(size_t i, const LintFinding& f) {
    if (f.facts.key.empty()) {
      constexpr size_t kMany = 16;
      Saying& saying = sayings_.at(finding_identity(lint_rules()[f.rule].id, "", f.message));
      if (saying.count < kMany) return std::nullopt;
      if (!saying.first) saying.first = i;
      return *saying.first == i ? std::nullopt : saying.first;
    }
    const auto [at, is_first] = peers_.try_emplace({f.facts.key, f.facts.value}, i);
    return is_first ? std::nullopt : std::optional(at->second);
  }

  const std::vector<LintFinding>& findings_;
  const std::vector<LostFile>& lost_;
  std::vector<CauseIndex> rows_;  ///< rows of kCauseRows whose cause was found
  std::map<std::string, std::vector<CauseIndex>> stated_;
  std::map<std::string, size_t, std::less<>> lost_tensors_;  ///< for each tensor, the finding about its file
  /// A finding about a lost file, and a finding about a lost file whose tensors are unknown.
  std::optional<size_t> any_, unknown_;
  const std::vector<bool> lacks_ = rules_of(kLacks),
                          claims_ = rules_of("module-shape manifest-hash config-* engine-*"),
                          is_loose_ = rules_of("unused-pattern mtp-missing head-missing");
  std::map<std::pair<std::string, std::string>, size_t> peers_;
  struct Saying {
    size_t count = 0;
    std::optional<size_t> first{};
  };
  std::map<std::string, Saying> sayings_;
};

/// Returns the first cause in a chain of causes; nullopt: the chain is a circle.
std::optional<size_t> root_of(size_t i, const std::vector<std::optional<size_t>>& causes) {
  size_t root = i;
  for (size_t steps = 0; causes[root]; ++steps) {
    if (steps == 16) return std::nullopt;
    root = *causes[root];
  }
  return root;
}

}  // namespace

void fold_consequences(std::vector<LintFinding>& findings, const std::vector<LostFile>& lost) {
  if (findings.size() < 2) return;
  CauseFinder finder(findings, lost);
  std::vector<std::optional<size_t>> causes(findings.size());
  for (size_t i = 0; i < findings.size(); ++i) {
    const auto cause = finder.find(i);
    if (cause && findings[*cause].severity >= findings[i].severity) causes[i] = cause;
  }
  std::vector<size_t> roots(findings.size());
  for (size_t i = 0; i < findings.size(); ++i) roots[i] = root_of(i, causes).value_or(i);
  std::vector<LintFinding> kept;
  std::vector<size_t> place(findings.size());
  for (size_t i = 0; i < findings.size(); ++i) {
    if (roots[i] != i) continue;
    place[i] = kept.size();
    kept.push_back(std::move(findings[i]));
  }
  for (size_t i = 0; i < findings.size(); ++i)
    if (roots[i] != i) kept[place[roots[i]]].consequences.push_back(std::move(findings[i]));
  findings = std::move(kept);
}

}  // namespace twofour
