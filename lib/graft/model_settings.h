#pragma once
#include <cstdint>
#include <string>

#include "formats/json.h"
#include "lib/checkpoint/checkpoint.h"

namespace twofour {

/// The layers that a checkpoint's tensors have.
struct LayerCounts {
  int64_t main = 0;      ///< layers of the language model, from 0 on
  int64_t draft = 0;     ///< draft layers, from 0 on
  bool inlined = false;  ///< draft layers are numbered after the others
};
/// Of the tensors, where config.json says `layers`. Throws Error where numbers are left out.
LayerCounts count_layers(const Checkpoint& checkpoint, int64_t layers);

/// The config of a base that got draft layers or other modules of a donor. `result` has the tensors. `took`:
/// draft layers came. Throws Error where no key says their count.
Json config_after_graft(const Checkpoint& base, const Checkpoint& donor, const Checkpoint& result, bool took);

/// The config after modules went. Throws Error where layers went that are not the last.
Json config_after_drop(const Checkpoint& source, const Checkpoint& result);

/// The config after all but `count` experts of each block went.
Json config_after_experts(const Checkpoint& source, int64_t experts, int64_t count);

}  // namespace twofour
