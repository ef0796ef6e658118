#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "lib/base/threads/progress.h"
#include "lib/jobs/compress/solved_linears.h"
#include "lib/recipe/statistics/statistics.h"

namespace twofour {

/// A format of a menu, and the linears in it. The linears that stay as they are have none.
struct MenuFormat {
  std::string word;
  std::shared_ptr<const SolvedLinears> linears = {};
};

/// Linears that engines multiply or store as one, and which therefore get one format: q, k and v; gate and
/// up; all experts of a layer; any other single linear. If the menu has a layout, an MLP is one, too.
struct SizedUnit {
  /// The unit in a format of the menu.
  struct Option {
    size_t format;    ///< position in the menu
    uint64_t bits;    ///< bits of codes and block scales, without scales of rows and matrices
    uint64_t bytes;   ///< size of all its tensors
    double loss = 0;  ///< see measure_losses()
  };
  std::string name;
  std::vector<std::string> modules = {};  ///< names as they are written
  std::set<std::string> sources = {};     ///< names in the source
  uint64_t weights = 0;
  uint64_t own_bytes = 0;  ///< size of all its tensors in the source
  std::vector<Option> options = {};
};

/// Returns the units of the linears that a menu takes, in natural order, with the size of each format that
/// takes all linears of the unit. Throws Error if a linear of the source is quantized.
std::vector<SizedUnit> sized_units(const Checkpoint& source, const std::vector<MenuFormat>& menu);

/// The figure by which losses are predicted.
enum class LossBy {
  kFisher,  ///< nats a token: half of the sum over rows of d He d', where d is a row's change
  kHessian  ///< the sum over rows of d H d', divided by the same sum of the weights, over matrices
};

/// kFisher if all entries of a statistics file have a fisher_hessian.
LossBy loss_by(const Statistics& statistics);

/// Measures the loss of each unit in each format. Each format is written into `folder`, some units at a time,
/// by the statistics if these choose its weights, and is read back. Routed experts count the tokens that they
/// see, as a share of the tokens of the model. `menu` must be planned with the statistics. Throws Error if a
/// linear has no statistics.
void measure_losses(const std::vector<MenuFormat>& menu, const Statistics& statistics,
                    const std::filesystem::path& folder, const Compute& compute,
                    std::vector<SizedUnit>& units, Progress& progress);

}  // namespace twofour
