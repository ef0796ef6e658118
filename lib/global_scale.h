#pragma once
#include "lib/checkpoint/checkpoint.h"
#include "lib/findings/problems.h"

namespace twofour {

/// A global scale as stored and as the multiplier it stands for.
struct SourceScale {
  uint32_t stored_bits;
  float multiplier;
};

/// The global scale of one expert of a module. One that is not positive and finite is a problem.
SourceScale read_global_scale(const Checkpoint& checkpoint, const Nvfp4Module& module, int64_t expert,
                              Problems& problems);

}  // namespace twofour
