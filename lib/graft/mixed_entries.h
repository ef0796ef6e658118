#pragma once
#include <set>
#include <string>

#include "lib/source/checkpoint/checkpoint.h"
#include "lib/source/dialects/output_dialect.h"

namespace twofour {

/// Writes the configuration of a grafted checkpoint from its tensors, with an entry for each module. The
/// dialect is the base's or, if the base is not quantized, the donor's. It serves results that a modified
/// config of the base cannot describe. `result` has the result's names, types and shapes. `came` has the
/// names of the donor's tensors. Throws Error if the dialect cannot name a format, if tensors are of a
/// different dialect, and if loaders could not tell modules apart.
ConfigEntries write_mixed_words(const Checkpoint& base, const Checkpoint& donor, const Checkpoint& result,
                                const std::set<std::string>& came);

}  // namespace twofour
