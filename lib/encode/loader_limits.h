#pragma once
#include <string>
#include <vector>

#include "lib/checkpoint/checkpoint.h"
#include "lib/checkpoint/linears.h"
#include "lib/encode/quantize_select.h"
#include "lib/findings/finding.h"
#include "lib/findings/problems.h"

namespace twofour {

/// What to do about linears with N or K that blocks of FP8 do not divide: refuse them, leave them as they
/// are, or write them, as DeepSeek does, for loaders that take them.
enum class OddBlocks { kRefuse, kKeep, kWrite };

/// "refuse", "keep", "write" or, the default, "". Throws Error on other words.
OddBlocks parse_odd_blocks(const std::string& word);

/// Holds linears that become FP8 against what loaders of the dialect take, from their shapes and names; what
/// they refuse is a problem. Linears that are to be left, with those that engines fuse with them, leave
/// `chosen`, positions in `modules`, with a note.
void apply_loader_limits(const Checkpoint& source, const std::vector<Linear>& modules, const EncodeRule& rule,
                         OddBlocks odd_blocks, std::vector<size_t>& chosen, Findings& findings,
                         Problems& problems);

}  // namespace twofour
