#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lib/source/checkpoint/checkpoint.h"

namespace twofour {

/// The bytes of tensors, by name.
using TensorBytes = std::map<std::string, std::vector<uint8_t>>;

/// Returns a checkpoint that equals `base`, except for the bytes of some tensors. Callers may change the
/// bytes between reads, but not names or sizes. Throws Error if `base` lacks a tensor or has another size for
/// it. `base` must not be computed by open_quantized().
Checkpoint with_substituted(Checkpoint base, std::shared_ptr<const TensorBytes> bytes);

}  // namespace twofour
