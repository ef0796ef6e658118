#pragma once
#include <map>
#include <string>
#include <vector>

#include "lib/checkpoint/checkpoint.h"
#include "lib/methods/quantized_group.h"

namespace twofour {

/// What describes a quantized checkpoint to loaders: config.json and, for ModelOpt, hf_quant_config.json.
/// `unquantized` are linears that stay as they are, names and globs. Throws Error where the source says
/// something that the dialect has no words for.
std::map<std::string, std::string> quantized_texts(const Checkpoint& source, const EncodeRule& rule,
                                                   const std::vector<std::string>& unquantized);

}  // namespace twofour
