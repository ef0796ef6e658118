#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "formats/families/sizes.h"

namespace twofour {

/// Votes of tensors on sizes. Each size is given by an expression of config keys.
class SizeVotes {
 public:
  /// Adds a vote: one dimension of a tensor is `found`, and `expression` should give it. `weight` is the
  /// number of tensors with this vote.
  void add(std::string_view expression, int64_t found, size_t tensor, size_t weight = 1);

  struct Vote {
    size_t count = 0, first = 0;  ///< number of tensors, and the first of them
  };
  using Votes = std::map<int64_t, Vote>;
  /// Returns all votes, by expression.
  const std::map<std::string, Votes, std::less<>>& all() const { return all_; }

 private:
  std::map<std::string, Votes, std::less<>> all_;
};

/// A key of the config whose number contradicts the tensors.
struct WrongKey {
  std::string key;
  std::optional<int64_t> configured;  ///< number in the config; if it has none, the family's default
  int64_t found = 0;                  ///< number with which all sizes agree
  size_t tensors = 0, first = 0;
  std::string expression;  ///< expression for the first tensor
  /// Other keys with a number that explains as many sizes, as of two keys that are always multiplied.
  std::vector<std::pair<std::string, int64_t>> others{};
};

/// Finds the wrong keys, on the assumption that most tensors are right. These are the fewest keys whose
/// correction makes the sizes of most tensors agree. Sets the corrected numbers in `sizes`. A tensor that
/// still disagrees is wrong itself.
std::vector<WrongKey> find_wrong_keys(const SizeVotes& votes, FamilySizes& sizes);

}  // namespace twofour
