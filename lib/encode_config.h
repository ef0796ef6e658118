#pragma once
#include <map>
#include <string>

#include "lib/checkpoint/checkpoint.h"
#include "lib/plan/plan.h"

namespace twofour {

/// What tells loaders of an encoded checkpoint: config.json and, for ModelOpt, hf_quant_config.json. Throws
/// Error where the source says something that the dialect has no words for.
std::map<std::string, std::string> encode_texts(const Checkpoint& source, const Plan& plan);

}  // namespace twofour
