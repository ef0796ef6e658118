#pragma once
#include <cstdint>

#include "lib/artifact/edit.h"
#include "lib/checkpoint/checkpoint.h"
#include "lib/findings/finding.h"
#include "lib/threads/progress.h"

namespace twofour {

/// What the proof of an edit found.
struct EditProof {
  Findings differences;                           ///< any makes the result wrong
  uint64_t source_tensors = 0, source_bytes = 0;  ///< accounted for: in the result, or gone as the edit says
};

/// Holds a checkpoint that was grafted or dropped from against the checkpoints that it was made of: every
/// byte of its tensors, all tensors of theirs, the index, counts and lists in config.json and what says how
/// modules are quantized. Shares no code with lib/graft. `donor` is null but for a graft.
EditProof prove_edit(const Checkpoint& artifact, const Edit& edit, const Checkpoint& base,
                     const Checkpoint* donor, Progress& progress);

}  // namespace twofour
