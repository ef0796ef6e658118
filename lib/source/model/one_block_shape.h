#pragma once
#include "lib/source/model/model_shape.h"
#include "lib/source/model/settings.h"

namespace twofour {

/// Reads the kinds of Nemotron-H's layers, and what its blocks need, except the router. `shape` has the sizes
/// of the model. Throws Error on what no Nemotron-H has, and on settings that transformers does not heed.
void read_one_block_shape(const Settings& settings, ModelShape& shape);

}  // namespace twofour
