#pragma once
#include <cstdint>
#include <functional>

#include "formats/json.h"
#include "lib/source/checkpoint/checkpoint.h"

namespace twofour {

/// Calls `f` on a config and the configs of its language model.
void for_each_config(Json& config, const std::function<void(Json&)>& f);
/// Sets a key in every config that has it, otherwise beside num_hidden_layers.
void set_everywhere(Json& config, const char* key, const Json& value);

/// The layers of a checkpoint, judged by its tensors.
struct LayerCounts {
  int64_t main = 0;      ///< layers of the language model, from 0 on
  int64_t draft = 0;     ///< draft layers, from 0 on
  bool inlined = false;  ///< draft layers are numbered after the others
};
/// Counts layers of the tensors; `layers` is the count in config.json. Throws Error if numbers are left out.
LayerCounts count_layers(const Checkpoint& checkpoint, int64_t layers);

/// The config of a base that received draft layers or other modules of a donor. `result` has the tensors.
/// `took`: draft layers came. Throws Error if no key holds their count.
Json config_after_graft(const Checkpoint& base, const Checkpoint& donor, const Checkpoint& result, bool took);

/// The config after modules were dropped. Throws Error if dropped layers are not the last.
Json config_after_drop(const Checkpoint& source, const Checkpoint& result);

/// The config after all but `count` experts of each block were dropped.
Json config_after_experts(const Checkpoint& source, int64_t experts, int64_t count);

/// A config.json after modules were dropped or added, with updated keys that announce such modules: switches
/// of parameters in the model's family, and DeepSeek-V4's list of compressors. If no module of a key is left,
/// the key announces none. If the first such modules came, the key has the value in `donor`, the donor's
/// config.json (null: there is no donor). `config` is that of the result except for these keys, `before` has
/// the base's tensors, `now` the result's. If only some layers lose such modules, no value fits, and the key
/// is unchanged.
Json switch_settings(Json config, const Checkpoint& before, const Checkpoint& now, const Json& donor);

}  // namespace twofour
