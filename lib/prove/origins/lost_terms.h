#pragma once
#include <functional>
#include <string>
#include <vector>

#include "lib/source/checkpoint/checkpoint.h"

namespace twofour {

/// Tensors that change the weights of modules with codes that a graft took, but are missing in the result: a
/// tensor of the donor that was left, a tensor of the base that stayed, or a setting of one config alone.
struct LostTerm {
  std::string where, problem;
};

/// Finds the terms that a graft lost or added, by names and settings alone, without code of lib/graft and of
/// the readers of codes. `stays` is true for a tensor of base or donor that is in the result.
std::vector<LostTerm> find_lost_terms(
    const Checkpoint& artifact, const Checkpoint& base, const Checkpoint& donor,
    const std::function<bool(const Checkpoint& source, size_t tensor)>& stays);

}  // namespace twofour
