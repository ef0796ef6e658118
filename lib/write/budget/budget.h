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

/// Matrices that are stored or multiplied as one, and so pruned as one: q, k and v; gate and up of a layer,
/// of all its experts; down of all its experts; another linear alone. For prune and layouts: an MLP, or the
/// experts of a layer, as a whole.
struct PruningUnit {
  std::string name;                  ///< "model.layers.0.mlp.gate_proj+up_proj"
  std::vector<std::string> modules;  ///< as the source names them
  uint64_t bytes = 0;                ///< of codes and block scales, unpruned
  double dense = 0;                  ///< expected loss of quantizing alone, see OutputLoss
  double pruned = 0;                 ///< of pruning and quantizing
  double cost() const { return pruned - dense; }
  double cost_per_byte() const { return cost() / static_cast<double>(bytes); }
};

/// The amount to prune: a share of the bytes of all units, or an expected loss beyond that of quantizing.
struct Budget {
  std::optional<double> share, loss;
  bool is_given() const { return share || loss; }
  double value() const { return share ? *share : *loss; }
  OptionName option() const { return share ? options::kBudget : options::kMaxLoss; }
  /// Throws Error unless the share is from 0 to 1, or the loss a finite number, 0 or more.
  void check() const;
};

/// Units in the order of pruning: by their cost per byte, and by name if equal. The first `pruned` of them
/// are pruned.
struct BudgetChoice {
  Budget budget;
  std::vector<PruningUnit> units;
  size_t pruned = 0;
  /// Sums over the first `count` units.
  uint64_t bytes(size_t count) const;
  double cost(size_t count) const;
  /// The bytes of the first `count` units, as a share of all.
  double share(size_t count) const;
  /// Expected loss of quantizing all.
  double dense_loss() const;
  /// A warning if the budget is not 0 and pays for no unit at all; else none.
  Findings warnings() const;
};

/// How units are measured. The figures are the same for any number of threads.
struct BudgetRun {
  int jobs = 1;
  Compute compute;
  Io io = Io::kCached;
};

/// Prunes as much as a budget pays for: quantizes each matrix that the recipe's one rule takes, with its
/// pattern and without, writes neither, adds up the costs, and takes the units with the least cost per byte.
/// The recipe gets rules that prune these units; the other units are only quantized, left, or put into the
/// layout that holds all weights. The rule has statistics and is `quantize` or `prune` with a pattern, or a
/// layout for one. Throws Error if a matrix has no `fisher_hessian` or cannot be quantized, and if nothing
/// would change.
BudgetChoice prune_by_budget(const std::filesystem::path& source, Recipe& recipe, const Budget& budget,
                             const BudgetRun& run, Progress& progress);

}  // namespace twofour
