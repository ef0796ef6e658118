#pragma once
#include <string>

#include "formats/json.h"
#include "lib/checkpoint.h"
#include "lib/plan.h"

namespace twofour {

/// The source's quantization entry, from config.json or hf_quant_config.json; null where it has none.
Json source_quantization(const Checkpoint& source);

/// config.json of the artifact: the source's with a quantization_config that says what is true now.
Json artifact_config(const Checkpoint& source, const Plan& plan);

/// The index of the artifact, as text.
std::string artifact_index(const Plan& plan);

}  // namespace twofour
