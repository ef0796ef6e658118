#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "formats/families/sizes.h"

namespace twofour {

/// Which sizes tensors have where a config's expression of its keys is expected.
class SizeVotes {
 public:
  /// One dimension of one tensor. `weight`: how many tensors it stands for.
  void add(std::string_view expression, int64_t found, size_t tensor, size_t weight = 1);

  struct Vote {
    size_t count = 0, first = 0;  ///< tensors, the first of them
  };
  using Votes = std::map<int64_t, Vote>;
  /// By expression.
  const std::map<std::string, Votes, std::less<>>& all() const { return all_; }

 private:
  std::map<std::string, Votes, std::less<>> all_;
};

/// A key of the config that says another number than the tensors have.
struct WrongKey {
  std::string key;
  std::optional<int64_t> said;  ///< by the config, or by the family where the config is silent
  int64_t found = 0;            ///< what all sizes agree with
  size_t tensors = 0, first = 0;
  std::string expression;  ///< that the first tensor has
};

/// The keys that are wrong if most tensors are right: the fewest that make the sizes agree which most
/// tensors have. Sets them in `sizes`; a tensor that does not agree even so is itself the odd one.
std::vector<WrongKey> find_wrong_keys(const SizeVotes& votes, FamilySizes& sizes);

}  // namespace twofour
