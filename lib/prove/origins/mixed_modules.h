#pragma once
#include "lib/base/findings/finding.h"
#include "lib/prove/origins/edit_origin.h"

namespace twofour {

/// Finds the quantized modules of a graft that are made of parts of both sources, and those of the donor that
/// left parts behind. Scales of a module's inputs may come alone, in place of the base's, if the module has
/// one format in both sources; biases and scales of caches may, too.
Findings find_mixed_modules(const Checkpoint& artifact, const EditOrigins& origins, const Checkpoint& base,
                            const Checkpoint& donor);

}  // namespace twofour
