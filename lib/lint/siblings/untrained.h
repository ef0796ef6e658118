#pragma once
#include <vector>

#include "lib/lint/siblings/members.h"

namespace twofour {

using Group = std::vector<Member*>;

/// Returns the experts whose rows differ in size. Rows of experts that were never trained have one size, that
/// of their initialization. If few experts have rows that differ, all are returned.
Group trained_experts(const Group& experts);

/// True if the router never chose an expert in training: its matrix has rows of one size, as initialization
/// gives, and smaller ones than other experts, whose rows differ. A wrong scale would not make rows equal.
/// `median` is log2 of the usual RMS.
bool is_never_drawn(const Member& m, const Group& experts, double median);

/// True if the block scales of an expert are within `farthest` octaves of those of other experts, on average.
/// The RMS of codes is a sample of rows, which one row can distort. Scales are all counted.
bool has_usual_scales(const Member& m, const Group& experts, double farthest);

}  // namespace twofour
