#pragma once
#include "lib/validate/validate.h"

namespace twofour {

/// Runs each block of the plan that has w13 and w2 on seeded activations: with the source's weights, with
/// them pruned, and with what the artifact holds, all in double. Adds to `report`.
void check_layers(const Checkpoint& artifact, const Checkpoint& source, const Plan& plan,
                  const ValidateOptions& options, ValidateReport& report);

}  // namespace twofour
