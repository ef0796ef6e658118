#pragma once
#include <functional>
#include <vector>

#include "lib/checkpoint/matrices.h"
#include "lib/plan/plan.h"
#include "lib/threads/progress.h"
#include "lib/validate/validate.h"
#include "lib/metrics/value_error.h"

namespace twofour {

/// Which modules of the source to look at.
using ModuleFilter = std::function<bool(const WeightModule&)>;

/// Compares the weights of two checkpoints as numbers, however each stores them: one report for each module
/// of the source that `filter` picks, in natural order. Matrices that `other` lacks or has in another shape
/// are findings, and so is what cannot be read (severity error).
std::vector<ValueReport> compare_values(const Matrices& source, const Matrices& other,
                                        const ModuleFilter& filter, double tolerance, Progress& progress,
                                        Findings& findings);

/// Holds a rewritten checkpoint against its source in value space: weights where the rewrite keeps them all,
/// and the outputs of its feed-forward blocks. Adds to `report`.
void check_values(const Checkpoint& artifact, const Checkpoint& source, const Plan& plan,
                  const ValidateOptions& options, Progress& progress, ValidateReport& report);

}  // namespace twofour
