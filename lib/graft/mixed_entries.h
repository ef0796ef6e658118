#pragma once
#include <set>
#include <string>

#include "lib/source/checkpoint/checkpoint.h"
#include "lib/source/dialects/output_dialect.h"

namespace twofour {

/// The configuration of a grafted checkpoint, derived from its tensors: an entry for each module, in the
/// dialect of the base or, if that is not quantized, of the donor. It is for results that a modified config
/// of the base cannot describe. `result` has names, types and shapes, `came` the names of the donor's
/// tensors. Throws Error if the dialect cannot name a format, if tensors are of another dialect, and if
/// loaders could not tell modules apart.
ConfigEntries write_mixed_words(const Checkpoint& base, const Checkpoint& donor, const Checkpoint& result,
                                const std::set<std::string>& came);

}  // namespace twofour
