#pragma once
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lib/write/encode/quantized_group.h"
#include "lib/write/plan/method.h"

namespace twofour {

using QuantizedGroups = std::vector<std::unique_ptr<QuantizedGroup>>;

/// Matrices that are not solved with a full Hessian and descent, by the reason.
struct Unsolved {
  size_t count = 0;
  std::string first;  ///< a matrix and what its entry lacks
};
using UnsolvedByReason = std::map<std::string, Unsolved>;

/// Chooses how the statistics of the groups' rule solve each matrix; nothing without statistics. A file of
/// another model, an entry of another shape and, if the rule is strict, a file of other weights are problems.
UnsolvedByReason choose_solvings(const EncodeRule& rule, bool strict_statistics,
                                 const QuantizedGroups& groups, Planner& planner);

/// Chooses the mask of each matrix; nothing without masks. A mask that is missing, that has not the matrix's
/// shape or the rule's pattern, or that is of a matrix the checkpoint lacks, is a problem.
void choose_masks(const EncodeRule& rule, const QuantizedGroups& groups, Planner& planner);

}  // namespace twofour
