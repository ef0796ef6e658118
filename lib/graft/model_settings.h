#pragma once
#include <cstdint>
#include <functional>

#include "formats/json.h"
#include "lib/checkpoint/checkpoint.h"

namespace twofour {

/// Calls `f` on a config and those of its language model.
void for_each_config(Json& config, const std::function<void(Json&)>& f);
/// Sets a key wherever a config has it, else beside num_hidden_layers.
void set_everywhere(Json& config, const char* key, const Json& value);

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

/// A config.json after modules went or came, with keys that say whether there are such modules: those that
/// switch parameters of the model's family, and DeepSeek-V4's list of compressors. Where none is left of what
/// a key promises it says so; where the first come it says what `donor`, the donor's config.json, says of
/// them (null: there is no donor). `config` is that of the result but for these keys, `before` has the base's
/// tensors, `now` the result's. Where only some layers lose such modules no key can say it, and it stays.
Json switch_settings(Json config, const Checkpoint& before, const Checkpoint& now, const Json& donor);

}  // namespace twofour
