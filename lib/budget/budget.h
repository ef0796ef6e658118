#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lib/artifact/recipe.h"
#include "lib/checkpoint/checkpoint.h"
#include "lib/plan/transformation.h"
#include "lib/threads/progress.h"

namespace twofour {

/// What is stored or multiplied as one, and so pruned as one: q, k and v; gate and up of a layer, of all its
/// experts; down of all its experts; another linear alone. Of prune and layouts an MLP, or the experts of a
/// layer, as a whole.
struct PruningUnit {
  std::string name;                  ///< "model.layers.0.mlp.gate_proj+up_proj"
  std::vector<std::string> modules;  ///< as the source names them
  uint64_t bytes = 0;                ///< of codes and block scales, unpruned
  double dense = 0;                  ///< expected loss of quantizing alone, see OutputLoss
  double pruned = 0;                 ///< of pruning and quantizing
  double cost() const { return pruned - dense; }
  double cost_per_byte() const { return cost() / static_cast<double>(bytes); }
};

/// How much may be pruned: a share of the bytes of all units, or an expected loss beyond that of quantizing.
struct Budget {
  std::optional<double> share, loss;
};

/// Units in the order in which they are pruned, cheapest first; the first `pruned` of them are.
struct BudgetChoice {
  std::vector<PruningUnit> units;
  size_t pruned = 0;
  /// Sums over the first `count` units.
  uint64_t bytes(size_t count) const;
  double cost(size_t count) const;
};

/// Quantizes each matrix that the rule takes with its pattern and without, writes neither, and adds up what
/// each costs. `rule` has statistics and is of `quantize` or `prune`, with a pattern, or of a layout that
/// holds one; of `quantize` it gets the dialect that is written. Throws Error where a matrix has no
/// `fisher_hessian`, or cannot be quantized. The same figures for any number of threads.
std::vector<PruningUnit> measure_units(const Checkpoint& source, Rule& rule, int jobs, const Compute& compute,
                                       Progress& progress);

/// Orders units by their cost a byte, and by name among equals, and takes the first that the budget pays for.
BudgetChoice choose_units(std::vector<PruningUnit> units, const Budget& budget);

/// The rules that prune the chosen units and only quantize the others, leave them, or put them into the
/// layout that holds all weights. The first is for the pruned ones; none where nothing is pruned and the rest
/// stays.
std::vector<Rule> budget_rules(const Rule& rule, const BudgetChoice& choice);

}  // namespace twofour
