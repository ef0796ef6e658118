#pragma once
#include <string>

#include "formats/weight_format.h"
#include "lib/source/config/configured_quantization.h"

namespace twofour {

/// Returns the first setting of a quantization config by which the codes of a module in `format` are of
/// another format, "KEY: expected X, found Y"; "": there is none. Settings that change no values are ignored.
std::string contradiction_of(ConfiguredQuantization& configured, const std::string& module,
                             WeightFormat format);

}  // namespace twofour
