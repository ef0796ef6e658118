#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "lib/artifact/recipe.h"
#include "lib/checkpoint/linears.h"

namespace twofour {

/// Which blocks and single linears a rule for a layout takes. Patterns match the prefix of a block ("P" of
/// P.w13 and P.w2) or the name of a linear.
class LayoutChoice {
 public:
  /// `is_moe`: the model has routed experts, which are the default set; else its MLPs are. `layers`: of the
  /// model. `selection` outlives this.
  LayoutChoice(const Selection& selection, bool is_moe, int64_t layers);

  /// Why a block is taken: "default set", "--include" or what names it; nullptr if it is not. `module` is one
  /// of its linears.
  const char* block(const std::string& name, BlockKind kind, const std::string& module);
  /// The same of a linear that belongs to no block that is taken.
  const char* single(const std::string& module);
  /// Whether a rule's patterns or roles name a block or linear, rather than the default set.
  static bool names_it(const char* why);
  void refuse_unused() const;

 private:
  bool has_role(const std::string& module) const;

  const Selection& selection_;
  const BlockKind default_kind_;
  const int64_t layers_;
  Matcher include_, exclude_, also_;
};

/// The linears that the rules for layouts take and that are not NVFP4, so that they are quantized first: of
/// each rule of the recipe, those that no rule before it takes. Those of the default set are among them where
/// the set has no NVFP4 at all, floats that producers leave alone apart; those that a rule names always.
std::vector<std::vector<size_t>> choose_to_quantize(const Checkpoint& source,
                                                    const std::vector<Linear>& linears, const Recipe& recipe);

/// Whether a rule's `to` is a layout.
bool makes_layout(const Rule& rule);

}  // namespace twofour
