#pragma once
#include <string>
#include <vector>

#include "lib/checkpoint/checkpoint.h"
#include "lib/checkpoint/linears.h"
#include "lib/findings/problems.h"
#include "lib/statistics/statistics.h"

namespace twofour {

/// Holds a file, held-out sums too, against the linears of a checkpoint: a linear that it serves and the
/// checkpoint lacks, a K that disagrees, and the N of a target offset, are problems. Experts of a stack may
/// have names of their own.
void hold_statistics(const Statistics& statistics, const Checkpoint& checkpoint,
                     const std::vector<Linear>& linears, Problems& problems);

/// The hash of the norm before the head, as `weights` of a statistics file; empty where the checkpoint has
/// none of a known name.
std::string final_norm_hash(const Checkpoint& checkpoint);

/// Why statistics are of other weights of the model than a checkpoint's, or, where `strict`, may be: nothing
/// says of which weights they are, or the checkpoint has no final norm to tell. Empty: they are of these.
std::string other_weights(const Statistics& statistics, const Checkpoint& checkpoint, bool strict);

/// What of a checkpoint's linears a file serves; each expert of a stack counts for itself.
struct StatisticsCoverage {
  size_t linears = 0;   ///< of the checkpoint, without quantized tables
  size_t served = 0;    ///< with tokens
  size_t full = 0;      ///< of them with sums over all pairs of inputs, and at least 4 tokens an input
  size_t few = 0;       ///< with 1 to 4 tokens an input
  size_t fewer = 0;     ///< with less than one
  size_t diagonal = 0;  ///< with a diagonal alone
  size_t without_tokens = 0;
  size_t without_inputs = 0;              ///< of those with tokens: all sums are 0
  std::vector<std::string> missing = {};  ///< the first linears that are not served
  bool knows_weights = false, same_weights = false;
};

/// Reads all sums, held-out ones too, and adds a problem for each tensor with a number that is NaN or
/// infinite, with a negative diagonal or, of products, that no solver could factorize.
void check_sums(const Statistics& statistics, int threads, Problems& problems);

/// Computes the targets of all linears that the file has them of, and adds a problem for each that is beyond
/// kMostTarget of their weights.
void check_targets(const Statistics& statistics, const Checkpoint& checkpoint,
                   const std::vector<Linear>& linears, int threads, Problems& problems);

/// Throws Error where the file is of another model, and what check_sums() and check_targets() find.
StatisticsCoverage cover(const Statistics& statistics, const Checkpoint& checkpoint, int threads = 1);

}  // namespace twofour
