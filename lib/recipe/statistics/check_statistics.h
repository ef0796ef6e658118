#pragma once
#include <string>
#include <vector>

#include "lib/base/findings/problems.h"
#include "lib/recipe/statistics/statistics.h"
#include "lib/source/checkpoint/checkpoint.h"
#include "lib/source/checkpoint/linears.h"

namespace twofour {

/// Compares a file, including held-out sums, with the linears of a checkpoint. It is a problem if the file
/// serves a linear that the checkpoint lacks, if a K disagrees, or if the N of a target offset does. Experts
/// of a stack may have names of their own.
void hold_statistics(const Statistics& statistics, const Checkpoint& checkpoint,
                     const std::vector<Linear>& linears, Problems& problems);

/// The hash of the norm before the head, as `weights` of a statistics file; empty if the checkpoint has none
/// with a known name.
std::string final_norm_hash(const Checkpoint& checkpoint);

/// The reason why statistics belong to other weights of the model than a checkpoint's. If `strict`, also the
/// reason why they may: the file has no hash of weights, or the checkpoint has no final norm to compare.
/// Empty: they belong to these weights.
std::string other_weights(const Statistics& statistics, const Checkpoint& checkpoint, bool strict);

/// The share of a checkpoint's linears that a file serves; each expert of a stack counts separately.
struct StatisticsCoverage {
  size_t linears = 0;   ///< of the checkpoint, without quantized tables
  size_t served = 0;    ///< with tokens
  size_t full = 0;      ///< those that have sums over all pairs of inputs, and at least 4 tokens an input
  size_t few = 0;       ///< with 1 to 4 tokens an input
  size_t fewer = 0;     ///< with fewer than one
  size_t diagonal = 0;  ///< with only a diagonal
  size_t without_tokens = 0;
  size_t without_inputs = 0;              ///< of those with tokens: all sums are 0
  std::vector<std::string> missing = {};  ///< the first linears that are not served
  bool knows_weights = false, same_weights = false;
};

/// Reads all sums, including held-out ones, and adds a problem for each tensor with a number that is NaN or
/// infinite, with a negative diagonal or, for products, that cannot be factorized.
void check_sums(const Statistics& statistics, int threads, Problems& problems);

/// Computes all targets in the file, and adds a problem for each that is beyond kMostTarget of the linear's
/// weights.
void check_targets(const Statistics& statistics, const Checkpoint& checkpoint,
                   const std::vector<Linear>& linears, int threads, Problems& problems);

/// Throws Error if the file is of another model, or if check_sums() or check_targets() finds a problem.
StatisticsCoverage cover(const Statistics& statistics, const Checkpoint& checkpoint, int threads = 1);

}  // namespace twofour
