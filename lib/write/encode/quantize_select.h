#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/findings/finding.h"
#include "lib/base/findings/problems.h"
#include "lib/source/checkpoint/checkpoint.h"
#include "lib/source/checkpoint/linears.h"
#include "lib/write/encode/quantized_group.h"

namespace twofour {

/// Chooses by the recipe's patterns, which apply to modules as the source names them. By default it excludes
/// modules in floats that producers do not quantize: embeddings, heads, routers, norms, convolutions, vision
/// and prediction of further tokens. FP8 takes floats by default only if the source is not quantized at all,
/// and no format takes modules that have it already. Returns positions in `modules`. Modules that cannot be
/// encoded go into `problems`; throws Error on patterns that match nothing.
std::vector<size_t> select_encoded(const Checkpoint& source, const std::vector<Linear>& modules,
                                   const Selection& selection, const EncodeRule& rule, Findings& findings,
                                   Problems& problems);

/// True if producers leave a linear in floats, by its name: embeddings, heads, routers, vision, and layers
/// from number `layers` on, which predict further tokens.
bool is_left_in_floats(std::string_view name, int64_t layers);
/// True if even a rule that names a linear's role leaves it in floats, as engines need it: the gate of a
/// shared expert, the compressor of an attention.
bool is_left_of_role(std::string_view name, int64_t layers);

/// Groups of positions of modules that engines multiply as one, so that they share a global scale: gate and
/// up, w1 and w3, q, k and v. Each stack is its own group. Sorted by their first module.
std::vector<std::vector<size_t>> fused_groups(const std::vector<Linear>& modules);

/// Checks by shapes and names that loaders of the dialect take the linears that become FP8; linears that they
/// refuse are problems. Removes linears that must stay, and the linears that engines fuse with them, from
/// `chosen`, positions in `modules`, with a note.
void apply_loader_limits(const Checkpoint& source, const std::vector<Linear>& modules, const EncodeRule& rule,
                         std::vector<size_t>& chosen, Findings& findings, Problems& problems);

}  // namespace twofour
