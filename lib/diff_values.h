#pragma once
#include <vector>

#include "lib/diff/pairs.h"
#include "lib/threads/progress.h"

namespace twofour {

/// Gives every pair's entry its class and figures. Bytes first, as they are stored; as numbers only what
/// differs there.
void compare_pairs(const Matrices& a, const Matrices& b, double tolerance, Progress& progress,
                   std::vector<DiffPair>& pairs);

}  // namespace twofour
