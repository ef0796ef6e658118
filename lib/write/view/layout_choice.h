#pragma once
#include <cstddef>
#include <vector>

#include "lib/recipe/artifact/recipe.h"
#include "lib/source/linears/linears.h"

namespace twofour {

/// The linears of a rule that are computed before its layout packs them. Earlier rules take none of them.
struct ComputedLinears {
  /// Linears that are not NVFP4. Linears that a rule names are always in this list. The default set adds its
  /// linears only if it has no NVFP4 at all, and without the linears that producers leave in floats.
  std::vector<size_t> to_quantize;
  /// NVFP4 linears that the rule prunes by masks, or by statistics that have tokens for them.
  std::vector<size_t> to_prune;
  size_t without_statistics = 0;  ///< number of NVFP4 linears that are pruned by magnitude although the rule
                                  ///< has statistics
  bool empty() const { return to_quantize.empty() && to_prune.empty(); }
};

/// The computed linears of each rule. Rules that make no layout have none.
std::vector<ComputedLinears> choose_computed(const Checkpoint& source, const std::vector<Linear>& linears,
                                             const Recipe& recipe);

/// True if `to` of a rule is a layout.
bool makes_layout(const Rule& rule);
/// True if `to` of a rule is a layout for a sparsity pattern.
bool makes_sparse_layout(const Rule& rule);
/// True if statistics can choose the weights that a rule makes.
bool can_solve(const Rule& rule);

}  // namespace twofour
