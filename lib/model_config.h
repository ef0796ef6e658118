#pragma once
#include <cstdint>
#include <vector>

#include "formats/json.h"

namespace twofour {

/// What a config.json says under `key`, at its top or in its text_config; null where it says nothing.
Json model_setting(const Json& config, const char* key);

/// A config.json and its text_config, as far as they are there.
std::vector<Json> model_configs(const Json& config);

/// The largest count of routed experts that a config.json states anywhere, or 0.
int64_t promised_experts(const Json& config);

}  // namespace twofour
