#pragma once
#include <string>
#include <utility>
#include <vector>

#include "lib/synth/shapes.h"

namespace twofour {

/// The names and texts of the files beside the weights. They are the published configuration, and a tokenizer
/// with one token, which is enough for loaders to start.
std::vector<std::pair<std::string, std::string>> synth_auxiliary_files(const SynthModel& model);

}  // namespace twofour
