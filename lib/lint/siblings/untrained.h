#pragma once
#include <vector>

#include "lib/lint/siblings/members.h"

namespace twofour {

using Group = std::vector<Member*>;

/// Returns the experts whose rows differ in size, since those that were never trained all have the size that
/// they were initialized with. If they are few, all experts are returned.
Group trained_experts(const Group& experts);

/// True if an expert's matrix has rows of one size, smaller than those of other experts, whose rows differ:
/// weights as they were initialized, of an expert that no token came to. A scale that is wrong leaves rows as
/// different as they were. `median` is log2 of the usual RMS.
bool is_never_drawn(const Member& m, const Group& experts, double median);

/// True if the block scales of an expert are within `farthest` octaves of those of other experts, on average.
/// The RMS of codes is of some rows, so that one row can spoil it; scales are all counted.
bool has_usual_scales(const Member& m, const Group& experts, double farthest);

}  // namespace twofour
