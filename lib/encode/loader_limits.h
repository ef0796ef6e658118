#pragma once
#include <vector>

#include "lib/checkpoint/checkpoint.h"
#include "lib/checkpoint/linears.h"
#include "lib/encode/quantize_select.h"
#include "lib/findings/finding.h"
#include "lib/findings/problems.h"

namespace twofour {

/// Holds linears that become FP8 against what loaders of the dialect take, from their shapes and names; what
/// they refuse is a problem. Linears that are to be left, with those that engines fuse with them, leave
/// `chosen`, positions in `modules`, with a note.
void apply_loader_limits(const Checkpoint& source, const std::vector<Linear>& modules, const EncodeRule& rule,
                         std::vector<size_t>& chosen, Findings& findings, Problems& problems);

}  // namespace twofour
