#pragma once
#include "lib/checkpoint/checkpoint.h"
#include "lib/plan/plan.h"
#include "lib/threads/progress.h"
#include "lib/validate/validate.h"

namespace twofour {

/// Encodes every matrix of the plan again, weight by weight, by the rules of the formats alone, and holds the
/// artifact against it.
void check_encoded(const Checkpoint& artifact, const Checkpoint& source, const Plan& plan, Progress& progress,
                   ValidateReport& report);

}  // namespace twofour
