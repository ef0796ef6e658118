#pragma once
#include <cstdint>

#include "lib/base/findings/finding.h"
#include "lib/base/threads/progress.h"
#include "lib/recipe/artifact/edit.h"
#include "lib/source/checkpoint/checkpoint.h"

namespace twofour {

/// The result of proving an edit.
struct EditProof {
  Findings differences;                           ///< any makes the result wrong
  uint64_t source_tensors = 0, source_bytes = 0;  ///< accounted for: in the result, or dropped by the edit
};

/// Compares a grafted or reduced checkpoint with the checkpoints that it was made from: every byte of its
/// tensors, all tensors of the sources, the index, counts and lists in config.json, and the quantization of
/// modules in configs. Shares no code with lib/graft. `donor` is null except for a graft.
EditProof prove_edit(const Checkpoint& artifact, const Edit& edit, const Checkpoint& base,
                     const Checkpoint* donor, Progress& progress);

}  // namespace twofour
