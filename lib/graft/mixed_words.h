#pragma once
#include <set>
#include <string>

#include "lib/checkpoint/checkpoint.h"
#include "lib/dialects/output_dialect.h"

namespace twofour {

/// The configuration of a grafted checkpoint from what its tensors show: an entry a module, in the dialect of
/// the base or, where that is not quantized, of the donor. For results that the base's own words, with some
/// changed, cannot describe. `result` has names, types and shapes, `came` the names of what the donor gave.
/// Throws Error where the dialect cannot name a format, where tensors are of another dialect, and where
/// loaders would not tell modules apart.
ConfigEntries write_mixed_words(const Checkpoint& base, const Checkpoint& donor, const Checkpoint& result,
                                const std::set<std::string>& came);

}  // namespace twofour
