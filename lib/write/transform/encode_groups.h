#pragma once
#include <vector>

#include "lib/base/threads/progress.h"
#include "lib/write/transform/encoder.h"

namespace twofour {

/// A group of matrices that is encoded outside of a conversion.
struct GroupEncoding {
  const QuantizedGroup* group = nullptr;
  Encoder::Write write = {};  ///< takes the group's bytes; each group's calls come from one thread, but
                              ///< groups may be on different threads
  std::vector<EncodedResult> results = {};
};

/// Encodes groups, and adds the bytes that were read to `progress`. Encodes as many groups at a time as the
/// promised memory has room for. Throws Error with the problems of all groups. The number of threads does not
/// change the results.
void encode_groups(const Checkpoint& source, const std::vector<GroupEncoding*>& groups, int jobs,
                   Compute compute, Progress& progress);

}  // namespace twofour
