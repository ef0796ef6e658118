#pragma once
#include "lib/lint/siblings/members.h"

namespace twofour {

/// True if a matrix in FP8 or INT4 has scales more than `octaves` above their mean, each for codes that are
/// all equal. Producers give any scale to weights that are all zero, as after pruning.
bool has_unused_scales(const LintInput& input, const Member& m, double octaves);

/// Returns the number of group scales of INT4 that are 0 and whose codes differ. Groups of zeros may have a
/// scale of 0.
size_t count_zero_scales(const LintInput& input, const Member& m);

/// Returns the number of block scales of FP8 more than `octaves` below their mean whose codes differ. A row
/// may be very small, but a block of many rows is not.
size_t count_lost_scales(const LintInput& input, const Member& m, double octaves);

}  // namespace twofour
