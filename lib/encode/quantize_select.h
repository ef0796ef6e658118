#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "lib/checkpoint/checkpoint.h"
#include "lib/checkpoint/linears.h"
#include "lib/encode/quantized_group.h"
#include "lib/findings/finding.h"
#include "lib/findings/problems.h"

namespace twofour {

/// Chooses by the recipe's patterns, which count for modules as the source names them, and by what producers
/// leave alone: embeddings, heads, routers, norms, convolutions, vision and prediction of further tokens,
/// where these are in floats. FP8 takes floats by default only where the source is not quantized at all, and
/// nothing takes what is in its format already. Returns positions in `modules`. What cannot be encoded goes
/// into `problems`; throws Error on patterns that match nothing.
std::vector<size_t> select_encoded(const Checkpoint& source, const std::vector<Linear>& modules,
                                   const Selection& selection, const EncodeRule& rule, Findings& findings,
                                   Problems& problems);

/// Whether producers leave a linear of floats alone, by its name: embeddings, heads, routers, vision,
/// prediction of further tokens, which layers from number `layers` on do.
bool is_left_in_floats(std::string_view name, int64_t layers);
/// Whether a rule that names a linear's role leaves it in floats all the same, as engines want it: the gate
/// of a shared expert, the compressor of an attention.
bool is_left_of_role(std::string_view name, int64_t layers);

/// Positions of modules that engines multiply as one, so that they share a global scale: gate and up, w1 and
/// w3, q, k and v. Stacks stand alone. In the order of their first.
std::vector<std::vector<size_t>> fused_groups(const std::vector<Linear>& modules);

/// Holds linears that become FP8 against what loaders of the dialect take, from their shapes and names; what
/// they refuse is a problem. Linears that are to be left, with those that engines fuse with them, leave
/// `chosen`, positions in `modules`, with a note.
void apply_loader_limits(const Checkpoint& source, const std::vector<Linear>& modules, const EncodeRule& rule,
                         std::vector<size_t>& chosen, Findings& findings, Problems& problems);

}  // namespace twofour
