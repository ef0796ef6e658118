#pragma once
#include <cstdint>
#include <functional>

#include "formats/json.h"
#include "lib/source/checkpoint/checkpoint.h"

namespace twofour {

/// Calls `f` on a config and on the nested configs of its language model.
void for_each_config(Json& config, const std::function<void(Json&)>& f);
/// Sets a key in each of these configs that has it. If none has the key, sets it beside num_hidden_layers.
void set_everywhere(Json& config, const char* key, const Json& value);

/// The numbers of layers of a checkpoint, counted by its tensors.
struct LayerCounts {
  int64_t main = 0;      ///< number of layers of the language model
  int64_t draft = 0;     ///< number of draft layers
  bool inlined = false;  ///< draft layers are numbered after the language model's layers
};
/// Counts the layers that have tensors. `layers` is num_hidden_layers of config.json, or kNoLayerCount.
/// Throws Error if the numbers of layers have gaps.
LayerCounts count_layers(const Checkpoint& checkpoint, int64_t layers);

/// Returns the base's config after a graft of draft layers or other modules. `result` has the result's
/// tensors. `took` is true if the donor gave draft layers. Throws Error if no key holds their number.
Json config_after_graft(const Checkpoint& base, const Checkpoint& donor, const Checkpoint& result, bool took);

/// Returns the config after modules were dropped. `result` has the remaining tensors. Throws Error if layers
/// other than the last are dropped.
Json config_after_drop(const Checkpoint& source, const Checkpoint& result);

/// Returns the config after each block of `experts` experts was reduced to `count`.
Json config_after_experts(const Checkpoint& source, int64_t experts, int64_t count);

/// Updates the keys of a config.json that announce modules, after modules were dropped or added. These keys
/// are the switches of parameters in the model's family, and DeepSeek-V4's list of compressors. If no module
/// that a key announces is left, the key gets the value for none. If the base had none and the result has
/// some, the key gets its value in `donor`, the donor's config.json. `donor` is null if there is no donor. If
/// only some layers lost these modules, no value fits, and the key stays as it is. `config` is the result's
/// config before this update. `before` has the base's tensors, `now` the result's.
Json switch_settings(Json config, const Checkpoint& before, const Checkpoint& now, const Json& donor);

}  // namespace twofour
