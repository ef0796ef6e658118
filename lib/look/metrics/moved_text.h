#pragma once
#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "lib/look/metrics/moved_search.h"

namespace twofour {

/// The numbers of experts or layers of A, and for each the numbers of equal ones in B. There are several if B
/// has equal experts or layers.
using MovedNumbers = std::map<int64_t, std::set<int64_t>>;

/// Chooses one number in B for each number in A, so that as few as possible share a number in B. A number
/// that B has unchanged maps to itself.
std::map<int64_t, int64_t> choose_numbers(const MovedNumbers& numbers);

/// Describes moved experts or layers: "expert 3 equals expert 8 of B, expert 8 equals expert 3 of B", or the
/// rule that all of them follow. `what` is "expert" or "layer". A has `count` of them. `b` is the name of B.
std::string describe_numbers(const char* what, const MovedNumbers& numbers, int64_t count,
                             const std::string& b);

/// Describes the change of one matrix: "its 64 rows are turned by 1".
std::string describe_matrix(const MovedMatrix& m, const std::string& b);

}  // namespace twofour
