#pragma once
#include "lib/checkpoint/checkpoint.h"
#include "lib/plan/plan.h"
#include "lib/threads/progress.h"
#include "lib/validate/validate.h"

namespace twofour {

/// Derives every rewritten tensor again through the slow path, holds the artifact against it, and says what
/// pruning cost each module.
void check_rewritten(const Checkpoint& artifact, const Checkpoint& source, const Plan& plan,
                     Progress& progress, ValidateReport& report);

}  // namespace twofour
