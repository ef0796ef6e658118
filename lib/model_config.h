#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "formats/json.h"

namespace twofour {

/// What a config.json says under `key`, at its top or in its text_config; null where it says nothing. Within
/// `config`, as below.
const Json& model_setting(const Json& config, const char* key);

/// A config.json and its text_config, as far as they are there.
std::vector<const Json*> model_configs(const Json& config);

/// A setting for a message, a string's quotes once.
std::string quoted_setting(const Json& value);

/// The largest count of routed experts that a config.json states anywhere, or 0.
int64_t promised_experts(const Json& config);

}  // namespace twofour
