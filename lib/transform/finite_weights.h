#pragma once
#include <cstdint>
#include <span>
#include <string>

#include "formats/half.h"

namespace twofour {

/// Throws Error where one of rows [row, ...) of K weights becomes no finite number in BF16. `where` names the
/// tensor and, of a stack, the expert.
void refuse_beyond_bf16(const std::string& where, std::span<const float> rows, int64_t row, int64_t k);

}  // namespace twofour
