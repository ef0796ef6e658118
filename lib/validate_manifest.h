#pragma once
#include "lib/checkpoint/checkpoint.h"
#include "lib/artifact/manifest.h"
#include "lib/plan/plan.h"
#include "lib/threads/progress.h"
#include "lib/validate/validate.h"

namespace twofour {

/// Says again what twofour.json must say: hashes of the source's slices, stored bits of global scales,
/// quality figures, recipe, source and files. Only for an artifact that is equal to what its source derives
/// to, with `report.weights` filled; a text that differs becomes a difference "manifest".
void check_manifest(const Checkpoint& artifact, const Checkpoint& source, const Plan& plan,
                    const Manifest& manifest, Progress& progress, ValidateReport& report);

}  // namespace twofour
