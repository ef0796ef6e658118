#pragma once
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lib/write/encode/quantized_group.h"
#include "lib/write/plan/method.h"

namespace twofour {

using QuantizedGroups = std::vector<std::unique_ptr<QuantizedGroup>>;

/// Matrices that are solved without a full Hessian or without descent, all for the same reason.
struct Unsolved {
  size_t count = 0;
  std::string first;  ///< name of the first matrix, and the lack of its entry
};
using UnsolvedByReason = std::map<std::string, Unsolved>;

/// Chooses how the statistics of the groups' rule solve each matrix. Does nothing if the rule has no
/// statistics. Three things are problems: a file of a different model, an entry with a different shape and,
/// if `strict_statistics`, a file of other weights.
UnsolvedByReason choose_solvings(const EncodeRule& rule, bool strict_statistics,
                                 const QuantizedGroups& groups, Planner& planner);

/// Chooses the mask of each matrix. Does nothing if the rule has no masks. Three things are problems: a
/// missing mask, a mask without the matrix's shape or the rule's pattern, and a mask of a matrix that the
/// checkpoint lacks.
void choose_masks(const EncodeRule& rule, const QuantizedGroups& groups, Planner& planner);

}  // namespace twofour
