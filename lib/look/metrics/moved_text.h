#pragma once
#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "lib/look/metrics/moved_search.h"

namespace twofour {

/// The number of an expert or a layer of A, and the numbers in B that it equals; several if B has equal ones.
using MovedNumbers = std::map<int64_t, std::set<int64_t>>;

/// Chooses one number each, so that as few as possible share one: its own number if B has an equal one there.
std::map<int64_t, int64_t> choose_numbers(const MovedNumbers& numbers);

/// "expert 3 equals expert 8 of B, expert 8 equals expert 3 of B", or the rule that all of them follow.
/// `what` is "expert" or "layer"; A has `count` of them.
std::string describe_numbers(const char* what, const MovedNumbers& numbers, int64_t count,
                             const std::string& b);

/// Describes the change of one matrix: "its 64 rows are turned by 1".
std::string describe_matrix(const MovedMatrix& m, const std::string& b);

}  // namespace twofour
