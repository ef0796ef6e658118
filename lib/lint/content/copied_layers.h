#pragma once
#include <map>
#include <span>
#include <string>

#include "lib/lint/siblings/members.h"

namespace twofour {

/// Layers that repeat an earlier one by design. A model is made deeper by copies of several whole layers, or
/// by copies whose outputs are zero.
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
