#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "lib/metrics/moved_weights.h"

namespace twofour {

/// What one matrix of A is in B. Of a matrix that is what B has under its name there is none.
struct MovedMatrix {
  Moved how = Moved::kOther;
  std::vector<std::string> equals{};  ///< of kOther: matrices of B, several if they are alike
  /// Of kRows and kColumns: some or all lines of `count`, and which of B each is; of kSigns and kNibbles the
  /// rows that are turned among those looked at.
  std::vector<int64_t> lines{}, places{};
  int64_t count = 0;
  double factor = 1;  ///< of kFactor
};

/// By name in A. `differ`, `compared` and `unlike` as in find_moved().
std::map<std::string, MovedMatrix> search_moved(const Matrices& a, const Matrices& b,
                                                const std::map<std::string, int64_t>* differ,
                                                size_t& compared, std::vector<std::string>& unlike);

}  // namespace twofour
