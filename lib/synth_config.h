#pragma once
#include <string>
#include <utility>
#include <vector>

#include "formats/dialect.h"
#include "lib/synth/shapes.h"

namespace twofour {

/// The files beside the weights, name and text: configuration as the dialect's loaders want it, and a
/// tokenizer of one token, which is enough for them to start.
std::vector<std::pair<std::string, std::string>> synth_sidecars(const SynthModel& model,
                                                                const Nvfp4Dialect& dialect);

}  // namespace twofour
