#pragma once
#include "lib/source/model/model_shape.h"
#include "lib/source/model/settings.h"

namespace twofour {

/// Limits that no model exceeds. Structures that are built before weights are read grow with these numbers,
/// and later code multiplies a few of them.
inline constexpr int64_t kMostLayers = 10000, kMostHeadSize = 1 << 16, kMostSize = 1 << 28;
/// A number of the config that is above 0 and at most `most`. Throws Error on another one.
int64_t limited_count(const Settings& settings, const char* key, int64_t most = kMostSize);

/// Reads what DeepSeek-V4's attention, residual streams and tables of experts need. `shape` has the sizes of
/// the model. Throws Error on what no V4 has.
void read_compressed_shape(const Settings& settings, ModelShape& shape);

}  // namespace twofour
