#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "formats/families/sizes.h"

namespace twofour {

/// Sizes of tensors, by the expression of config keys that should give them.
class SizeVotes {
 public:
  /// Adds one dimension of one tensor. `weight`: the number of tensors that it stands for.
  void add(std::string_view expression, int64_t found, size_t tensor, size_t weight = 1);

  struct Vote {
    size_t count = 0, first = 0;  ///< number of tensors, the first of them
  };
  using Votes = std::map<int64_t, Vote>;
  /// All votes by expression.
  const std::map<std::string, Votes, std::less<>>& all() const { return all_; }

 private:
  std::map<std::string, Votes, std::less<>> all_;
};

/// A key of the config with another number than the tensors have.
struct WrongKey {
  std::string key;
  std::optional<int64_t> said;  ///< number in the config, or the family's default
  int64_t found = 0;            ///< number with which all sizes agree
  size_t tensors = 0, first = 0;
  std::string expression;  ///< expression of the first tensor
};

/// The keys that are wrong if most tensors are right: the fewest keys whose correction makes the sizes of
/// most tensors agree. Sets them in `sizes`. A tensor that still disagrees is itself wrong.
std::vector<WrongKey> find_wrong_keys(const SizeVotes& votes, FamilySizes& sizes);

}  // namespace twofour
