#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "lib/look/metrics/moved_weights.h"

namespace twofour {

/// The match of a matrix of A in B. A matrix that equals the one of its name in B has none.
struct MovedMatrix {
  Moved how = Moved::kOther;
  std::vector<std::string> equals{};  ///< of kOther: matrices of B, several if they are equal
  /// Of kRows and kColumns: some or all lines of `count`, and the line of B that each equals; of kSigns and
  /// kNibbles: the rows that are changed among those compared.
  std::vector<int64_t> lines{}, places{};
  int64_t count = 0;
  double factor = 1;  ///< of kFactor
};

/// Results by name in A. `differ`, `compared` and `unlike` as in find_moved().
std::map<std::string, MovedMatrix> search_moved(const Matrices& a, const Matrices& b,
                                                const std::map<std::string, int64_t>* differ,
                                                size_t& compared, std::vector<std::string>& unlike);

}  // namespace twofour
