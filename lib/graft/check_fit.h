#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lib/source/checkpoint/checkpoint.h"
#include "lib/source/linears/linears.h"

namespace twofour {

/// Throws Error unless the donor's modules fit the base's config and tensors. Compares the hidden size, the
/// vocabulary, the layers, the experts, and the shapes of the modules that they replace. `goes` marks the
/// base's tensors that are removed, `comes` the donor's tensors that are added. Both are indexed by position
/// in the checkpoint's tensors.
void refuse_unlike_shapes(const Checkpoint& base, const std::vector<Linear>& of_base,
                          const std::vector<bool>& goes, const Checkpoint& donor,
                          const std::vector<Linear>& of_donor, const std::vector<bool>& comes);

/// Throws Error if the config of `result` gives other values to the codes of a linear than that of `from`.
/// `linears` are those of `from`; `new_name` returns a module's name in `result`, nullopt if it is not there.
void refuse_other_readings(const Checkpoint& from, const std::vector<Linear>& linears,
                           const Checkpoint& result,
                           const std::function<std::optional<std::string>(const Linear& module)>& new_name);

/// Throws Error if a term that changes the weights of modules with codes which `comes` marks stays in the
/// donor, or if a term of the base or of the result's config would change them. `goes` and `comes` are those
/// of refuse_unlike_shapes().
void refuse_lost_terms(const Checkpoint& base, const std::vector<bool>& goes, const Checkpoint& donor,
                       const std::vector<Linear>& of_donor, const std::vector<bool>& comes,
                       const Checkpoint& result);

}  // namespace twofour
