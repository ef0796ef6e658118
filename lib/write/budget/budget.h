#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lib/base/findings/options.h"
#include "lib/base/threads/progress.h"
#include "lib/recipe/artifact/recipe.h"
#include "lib/source/checkpoint/checkpoint.h"
#include "lib/write/plan/transformation.h"

namespace twofour {

/// Matrices that are stored or multiplied as one, and are therefore pruned as one. Such units are: q, k and
/// v; gate and up of a layer, with all its experts; down with all its experts; any other single linear. For
/// prune and layouts, a unit is a whole MLP, or all experts of a layer.
struct PruningUnit {
  std::string name;                  ///< "model.layers.0.mlp.gate_proj+up_proj"
  std::vector<std::string> modules;  ///< names in the source
  uint64_t bytes = 0;                ///< bytes of codes and block scales, without pruning
  double dense = 0;                  ///< expected loss of only quantizing, see OutputLoss
  double pruned = 0;                 ///< expected loss of pruning and quantizing
  double cost() const { return pruned - dense; }
  double cost_per_byte() const { return cost() / static_cast<double>(bytes); }
};

/// The amount to prune: a share of the bytes of all units, or an expected loss beyond the loss of quantizing.
struct Budget {
  std::optional<double> share, loss;
  bool is_given() const { return share || loss; }
  double value() const { return share ? *share : *loss; }
  OptionName option() const { return share ? options::kBudget : options::kMaxLoss; }
  /// Throws Error unless the share is from 0 to 1, or the loss is finite and at least 0.
  void check() const;
};

/// Units in the order of pruning, which is by cost per byte, and by name if costs are equal. The first
/// `pruned` units are pruned.
struct BudgetChoice {
  Budget budget;
  std::vector<PruningUnit> units;
  size_t pruned = 0;
  /// The sums of bytes and costs over the first `count` units.
  uint64_t bytes(size_t count) const;
  double cost(size_t count) const;
  /// The bytes of the first `count` units, as a share of the bytes of all units.
  double share(size_t count) const;
  /// The expected loss of quantizing all units.
  double dense_loss() const;
  /// Has a warning if the budget is not 0 but too small for any unit, or if it leaves as many bits as a dense
  /// format that is better. Otherwise, it is empty.
  Findings warnings() const;
};

/// The options for measuring units. The number of threads does not change the figures.
struct BudgetRun {
  int jobs = 1;
  Compute compute;
  Io io = Io::kCached;
};

/// Prunes as many units as a budget allows. It quantizes each matrix that the recipe's only rule takes, once
/// with its pattern and once without. It writes neither result, but adds up the costs. Then it takes the
/// units with the least cost per byte. The recipe gets rules that prune these units. The other units are only
/// quantized, left, or put into the layout that holds all weights. The rule must have statistics. It must be
/// `quantize` or `prune` with a pattern, or a layout for a pattern. Throws Error if a matrix has no
/// `fisher_hessian` or cannot be quantized, and if nothing would change.
BudgetChoice prune_by_budget(const std::filesystem::path& source, Recipe& recipe, const Budget& budget,
                             const BudgetRun& run, Progress& progress);

}  // namespace twofour
