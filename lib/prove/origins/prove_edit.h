#pragma once
#include <cstdint>

#include "lib/base/findings/finding.h"
#include "lib/base/threads/progress.h"
#include "lib/recipe/artifact/edit.h"
#include "lib/source/checkpoint/checkpoint.h"

namespace twofour {

/// The result of proving an edit.
struct EditProof {
  Findings differences;                           ///< a single one makes the result wrong
  uint64_t source_tensors = 0, source_bytes = 0;  ///< tensors and bytes that are in the result, or that the
                                                  ///< edit dropped
};

/// Compares a grafted or reduced checkpoint with the checkpoints from which it was made. It compares every
/// byte of the tensors, all tensors of the sources, the index, the counts and lists in config.json, and the
/// quantization of modules in configs. It shares no code with lib/graft. `donor` is null unless the edit is a
/// graft.
EditProof prove_edit(const Checkpoint& artifact, const Edit& edit, const Checkpoint& base,
                     const Checkpoint* donor, Progress& progress);

}  // namespace twofour
