#pragma once
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lib/encode/quantized_group.h"
#include "lib/plan/method.h"

namespace twofour {

using QuantizedGroups = std::vector<std::unique_ptr<QuantizedGroup>>;

/// Matrices that are not solved under a full Hessian with descent, by the reason.
struct Unsolved {
  size_t count = 0;
  std::string first;  ///< a matrix and what its entry lacks
};
using UnsolvedByReason = std::map<std::string, Unsolved>;

/// Chooses how the statistics of the groups' rule solve each matrix; nothing without statistics. A file of
/// another model, an entry of another shape, and, where the rule is strict, a file of other weights are
/// problems.
UnsolvedByReason choose_solvings(const EncodeRule& rule, bool strict_statistics,
                                 const QuantizedGroups& groups, Planner& planner);

/// Chooses the mask of each matrix; nothing without masks. One that is missing, or that is not of the
/// matrix's shape or the rule's pattern, and a mask of what the checkpoint lacks, are problems.
void choose_masks(const EncodeRule& rule, const QuantizedGroups& groups, Planner& planner);

}  // namespace twofour
