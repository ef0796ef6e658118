#pragma once
#include <filesystem>

#include "lib/synth/plan.h"

namespace twofour {

/// Writes the weight files of a synthetic checkpoint with true headers, sizes and scales of matrices (all 1),
/// but holes in place of weights: terabytes that take next to no space, for what looks at headers only.
void write_headers(const std::filesystem::path& directory, const SynthPlan& plan, const SynthModel& model,
                   const Nvfp4Dialect& dialect);

}  // namespace twofour
