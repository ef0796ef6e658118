#pragma once
#include <memory>

#include "lib/prove/validate/checks.h"
#include "lib/write/view/substituted_tensors.h"

namespace twofour {

/// Checks the tensors that recovery tuned, which nothing can derive: that only norms and global scales are
/// among them, that their bytes have the recorded hashes and are finite, and that scales are positive.
/// Returns the bytes that they were tuned from, which the proof derives: a norm's are those of `source`, a
/// global scale's are in the record. Null if nothing was tuned. A difference leaves a tensor out.
std::shared_ptr<const TensorBytes> check_recovered(const Checkpoint& artifact, const Checkpoint& source,
                                                   const Manifest& manifest, ValidateReport& report);

}  // namespace twofour
