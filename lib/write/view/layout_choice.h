#pragma once
#include <cstddef>
#include <vector>

#include "lib/recipe/artifact/recipe.h"
#include "lib/source/checkpoint/linears.h"

namespace twofour {

/// The linears of a rule that are computed before its layout packs them. No earlier rule takes them.
struct ComputedLinears {
  /// Linears that are not NVFP4. Linears that a rule names are always included; those of the default set only
  /// if the set has no NVFP4 at all, without the ones that producers leave in floats.
  std::vector<size_t> to_quantize;
  /// NVFP4 linears that the rule prunes by statistics with tokens of them, or by masks.
  std::vector<size_t> to_prune;
  size_t without_statistics = 0;  ///< in NVFP4, pruned by magnitude though the rule has statistics
  bool empty() const { return to_quantize.empty() && to_prune.empty(); }
};

/// The computed linears of each rule; none for rules that make no layout.
std::vector<ComputedLinears> choose_computed(const Checkpoint& source, const std::vector<Linear>& linears,
                                             const Recipe& recipe);

/// True if a rule's `to` is a layout.
bool makes_layout(const Rule& rule);
/// True if a rule's `to` is a layout for a sparsity pattern.
bool makes_sparse_layout(const Rule& rule);
/// True if statistics can choose the weights that a rule makes.
bool can_solve(const Rule& rule);

}  // namespace twofour
