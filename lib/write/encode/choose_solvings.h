#pragma once
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lib/write/encode/quantized_group.h"
#include "lib/write/plan/method.h"

namespace twofour {

using QuantizedGroups = std::vector<std::unique_ptr<QuantizedGroup>>;

/// Matrices that are solved without a full Hessian or without descent, for one and the same reason.
struct Unsolved {
  size_t count = 0;
  std::string first;  ///< name of the first matrix, and what its entry lacks
};
using UnsolvedByReason = std::map<std::string, Unsolved>;

/// Chooses how the statistics of the groups' rule solve each matrix. Does nothing if the rule has no
/// statistics. Three things are problems: a file of another model, an entry with another shape and, if
/// `strict_statistics`, a file of other weights.
UnsolvedByReason choose_solvings(const EncodeRule& rule, bool strict_statistics,
                                 const QuantizedGroups& groups, Planner& planner);

/// Chooses the mask of each matrix. Does nothing if the rule has no masks. Three things are problems: a
/// missing mask, a mask without the matrix's shape or the rule's pattern, and a mask of a matrix that the
/// checkpoint lacks.
void choose_masks(const EncodeRule& rule, const QuantizedGroups& groups, Planner& planner);

}  // namespace twofour
