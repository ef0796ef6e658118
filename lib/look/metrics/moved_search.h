#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "lib/look/metrics/moved_weights.h"

namespace twofour {

/// The match of a matrix of A in B. A matrix that equals the matrix of its name in B has no match.
struct MovedMatrix {
  Moved how = Moved::kOther;
  std::vector<std::string> equals{};  ///< for kOther, the equal matrices of B
  /// For kRows and kColumns, `lines` has some or all of the `count` lines (rows or columns), and `places` has
  /// the equal line of B for each. For kSigns and kNibbles, `lines` has the compared rows that changed.
  std::vector<int64_t> lines{}, places{};
  int64_t count = 0;
  double factor = 1;  ///< for kFactor
};

/// Returns the matches by name in A. find_moved() explains `differ`, `compared` and `unlike`.
std::map<std::string, MovedMatrix> search_moved(const Matrices& a, const Matrices& b,
                                                const std::map<std::string, int64_t>* differ,
                                                size_t& compared, std::vector<std::string>& unlike);

}  // namespace twofour
