#pragma once
#include <string>
#include <vector>

#include "lib/base/findings/problems.h"
#include "lib/recipe/statistics/statistics.h"
#include "lib/source/checkpoint/checkpoint.h"
#include "lib/source/linears/linears.h"

namespace twofour {

/// Compares a statistics file, including held-out sums, with the linears of a checkpoint. Adds a problem for
/// each linear that the file serves and the checkpoint lacks, and for each K, or N of a target offset, that
/// differs. The file may name each expert of a stack.
void hold_statistics(const Statistics& statistics, const Checkpoint& checkpoint,
                     const std::vector<Linear>& linears, Problems& problems);

/// The hash of the norm before the head, which is `weights` in the metadata of a statistics file. Empty if
/// the checkpoint has no such norm under a known name.
std::string final_norm_hash(const Checkpoint& checkpoint);

/// The reason why statistics belong to other weights of the model than the checkpoint's. Empty if they belong
/// to the checkpoint's weights. If `strict`, it also gives the reason why this is unknown. Either the file
/// has no hash of weights, or the checkpoint has no final norm to compare.
std::string other_weights(const Statistics& statistics, const Checkpoint& checkpoint, bool strict);

/// The share of a checkpoint's linears that a file serves. Each expert of a stack counts separately.
struct StatisticsCoverage {
  size_t linears = 0;   ///< linears of the checkpoint, without quantized tables
  size_t served = 0;    ///< served linears with tokens
  size_t full = 0;      ///< with sums over all pairs of inputs, and at least 4 tokens per input
  size_t few = 0;       ///< with 1 to 4 tokens per input
  size_t fewer = 0;     ///< with fewer than 1 token per input
  size_t diagonal = 0;  ///< with only a diagonal
  size_t without_tokens = 0;
  size_t without_inputs = 0;              ///< with tokens, but all sums are 0
  std::vector<std::string> missing = {};  ///< the first linears that are not served
  bool knows_weights = false, same_weights = false;
};

/// Reads all sums, including held-out sums. Adds a problem for each tensor with a number that is NaN or
/// infinite or with a negative diagonal, and for each tensor of products that cannot be factorized.
void check_sums(const Statistics& statistics, int threads, Problems& problems);

/// Computes all targets in the file. Adds a problem for each target that exceeds kMostTarget times the
/// largest weight of its linear.
void check_targets(const Statistics& statistics, const Checkpoint& checkpoint,
                   const std::vector<Linear>& linears, int threads, Problems& problems);

/// Determines the share of a checkpoint that the file serves. Throws Error if the file is of a different
/// model, or if check_sums() or check_targets() finds a problem.
StatisticsCoverage cover(const Statistics& statistics, const Checkpoint& checkpoint, int threads = 1);

}  // namespace twofour
