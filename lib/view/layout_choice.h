#pragma once
#include <cstddef>
#include <vector>

#include "lib/artifact/recipe.h"
#include "lib/checkpoint/linears.h"

namespace twofour {

/// What of a rule's linears is computed before its layout packs them. No rule before it takes them.
struct ComputedLinears {
  /// Those that are not NVFP4. Those of the default set are among them where the set has no NVFP4 at all,
  /// floats that producers leave alone apart; those that a rule names always.
  std::vector<size_t> to_quantize;
  /// Those in NVFP4 that the rule prunes by statistics that have tokens of them, or by masks.
  std::vector<size_t> to_prune;
  size_t without_statistics = 0;  ///< in NVFP4, pruned by magnitude though the rule has statistics
  bool empty() const { return to_quantize.empty() && to_prune.empty(); }
};

/// That of each rule; of rules that make no layout nothing.
std::vector<ComputedLinears> choose_computed(const Checkpoint& source, const std::vector<Linear>& linears,
                                             const Recipe& recipe);

/// Whether a rule's `to` is a layout.
bool makes_layout(const Rule& rule);
/// Whether that layout holds a pattern.
bool makes_sparse_layout(const Rule& rule);
/// Whether weights that a rule makes can be chosen by statistics.
bool can_solve(const Rule& rule);

}  // namespace twofour
