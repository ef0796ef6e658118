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
#include "lib/findings/finding.h"
#include "lib/findings/problems.h"
#include "lib/plan/plan.h"

namespace twofour {

/// What rules plan into. A tensor of the source belongs to the first transformation that takes it.
class Planner {
 public:
  /// `written` is what twofour.json says of a source that twofour wrote, else nullptr.
  Planner(const Checkpoint& source, const Manifest* written, const MemoryLimits& limits, Findings& findings,
          Problems& problems);

  const Checkpoint& source;
  const Manifest* const written;
  const MemoryLimits limits;
  Findings& findings;
  Problems& problems;

  /// What people read as the reason of transformations that are added from now on: Rule::label.
  void set_label(std::string label) { label_ = std::move(label); }
  /// Adds a transformation, unless all of its sources are taken already. Some of them are a problem.
  void add(std::unique_ptr<Transformation> transformation);
  bool is_taken(size_t tensor) const { return taken_[tensor]; }
  std::vector<std::unique_ptr<const Transformation>> take() { return std::move(made_); }

  /// The config files that describe what is written; one rule gives them.
  void set_texts(std::map<std::string, std::string> texts);
  /// Modules of the same layout and pattern are one group, whichever rules made them.
  void add_layout(LayoutGroup group);
  const std::vector<LayoutGroup>& layouts() const { return layouts_; }
  /// The source's config stays true.
  void keep_config() { keeps_config_ = true; }
  /// Throws Error where no config describes all that the rules make.
  std::map<std::string, std::string> texts() const;
  bool keeps_config() const { return keeps_config_; }

 private:
  std::vector<std::unique_ptr<const Transformation>> made_;
  std::vector<bool> taken_;
  std::string label_;
  std::vector<LayoutGroup> layouts_;
  std::optional<std::map<std::string, std::string>> texts_;
  bool keeps_config_ = false;
};

/// How the modules of a rule change: the rule's words with their types.
class Method {
 public:
  virtual ~Method() = default;
  /// Plans the transformations of the modules that the rule's selection chooses, and completes the rule's
  /// words. Throws Error on a source or selection that the method cannot take; what is wrong with single
  /// tensors goes into the planner's problems.
  virtual void plan(Rule& rule, Planner& planner) const = 0;
  /// What "twofour.layout" in the files' headers says: the layout, or the format of a checkpoint.
  virtual std::string file_format(const Rule& rule) const { return rule.to; }
  /// What it makes, in a few words for people; the rule's words are complete.
  virtual std::string summary(const Rule& rule) const {
    return rule.pattern.empty() ? rule.to : rule.pattern;
  }
  /// Whether a source's quantization entries must be ones that can be kept beside another.
  virtual bool rewrites_config() const { return true; }
};

/// A row of the table of methods.
struct MethodRow {
  std::string_view name;                 ///< --to
  std::span<const char* const> options;  ///< of a rule, that it takes: "--dialect", ...
  /// Gives the rule's words their types and completes them. Throws Error on words that no option has.
  std::unique_ptr<Method> (*make)(Rule& rule);
};

/// The methods, layouts first; tests add their own.
std::vector<MethodRow>& methods();
/// The row of that name; nullptr if there is none.
const MethodRow* find_method(std::string_view name);
/// Throws Error on a name that no method has, on words that it has no use for and on words that no option
/// has.
std::unique_ptr<Method> make_method(Rule& rule);

}  // namespace twofour
