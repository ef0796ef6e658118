#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/findings/finding.h"
#include "lib/base/findings/problems.h"
#include "lib/source/checkpoint/checkpoint.h"
#include "lib/source/linears/linears.h"
#include "lib/write/encode/quantized_group.h"

namespace twofour {

/// Chooses modules by the recipe's patterns, which apply to the names in the source. By default, it leaves
/// out modules in floats that producers do not quantize. These are embeddings, heads, routers, norms,
/// convolutions, vision and prediction of further tokens. FP8 takes floats by default only if nothing in the
/// source is quantized. No format takes modules that already have it. Returns indices in `modules`. Modules
/// that cannot be encoded become problems. Throws Error if a pattern matches nothing.
std::vector<size_t> select_encoded(const Checkpoint& source, const std::vector<Linear>& modules,
                                   const Selection& selection, const EncodeRule& rule, Findings& findings,
                                   Problems& problems);

/// True if producers leave a linear with this name in floats. These are embeddings, heads, routers, vision,
/// and layers from number `layers` on, which predict further tokens.
bool is_left_in_floats(std::string_view name, int64_t layers);
/// True if a linear stays in floats even if a rule names its role, since engines require it. Examples are the
/// gate of a shared expert and the compressor of an attention.
bool is_left_of_role(std::string_view name, int64_t layers);

/// Groups of modules that engines multiply as one matrix, and which therefore share a global scale. These are
/// gate and up, w1 and w3, and q, k and v. Each stack is a group by itself. A group holds indices in
/// `modules`. Groups are sorted by their first module.
std::vector<std::vector<size_t>> fused_groups(const std::vector<Linear>& modules);

/// Checks by shapes and names whether loaders of the dialect accept the linears that become FP8. Linears that
/// they refuse are problems. Linears that must stay, and linears that engines fuse with them, are removed
/// from `chosen` and noted in `findings`. `chosen` holds indices in `modules`.
void apply_loader_limits(const Checkpoint& source, const std::vector<Linear>& modules, const EncodeRule& rule,
                         std::vector<size_t>& chosen, Findings& findings, Problems& problems);

}  // namespace twofour
