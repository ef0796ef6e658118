#pragma once
#include <vector>

#include "lib/base/threads/progress.h"
#include "lib/write/transform/encoder.h"

namespace twofour {

/// A group of matrices that is encoded outside of a conversion.
struct GroupEncoding {
  const QuantizedGroup* group = nullptr;
  Encoder::Write write = {};  ///< takes its bytes; called from any thread, but for one group from only one
  std::vector<EncodedResult> results = {};
};

/// Encodes groups, as many at a time as the promised memory has room for, and adds the bytes that were read
/// to `progress`. Throws Error with the problems of all of them. The same results for any number of threads.
void encode_groups(const Checkpoint& source, const std::vector<GroupEncoding*>& groups, int jobs,
                   Compute compute, Progress& progress);

}  // namespace twofour
