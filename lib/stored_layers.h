#pragma once
#include <vector>

#include "lib/validate/validate.h"
#include "lib/value_check.h"

namespace twofour {

/// Runs the feed-forward blocks of two checkpoints on seeded tokens through moe_reference and compares their
/// outputs: every block of which `filter` picks a module of the source. Only experts that a token visits are
/// read. Biases and a model's own variant of the activation are left out. Blocks that are incomplete, differ
/// in shape or are too large for the promised memory are findings, and so is what holds no weights (severity
/// error). Throws ReadError.
void run_stored_layers(const Matrices& source, const Matrices& other, const ModuleFilter& filter,
                       const ValidateOptions& options, Findings& findings, std::vector<LayerReport>& layers);

}  // namespace twofour
