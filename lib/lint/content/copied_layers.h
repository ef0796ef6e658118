#pragma once
#include <map>
#include <span>
#include <string>

#include "lib/lint/siblings/members.h"

namespace twofour {

/// Layers that repeat an earlier layer by design. Copies of whole layers make a model deeper, and so do
/// copies whose outputs are zero.
class CopiedLayers {
 public:
  /// `members` have the numbers that training gives; matrices of zeros are not among them.
  explicit CopiedLayers(std::span<const Member* const> members);
  /// True if `m`, which is equal to `other`, is equal because its layer repeats that of `other`.
  bool is_copy(const Member& m, const Member& other) const;

 private:
  std::map<std::string, std::string> source_;  ///< for each copied layer, the earliest layer that it repeats
};

}  // namespace twofour
