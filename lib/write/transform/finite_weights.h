#pragma once
#include <cstdint>
#include <span>
#include <string>

#include "formats/half.h"

namespace twofour {

/// Throws Error if a weight of `rows` is not finite in BF16. The rows have `k` weights each, and the first is
/// row `row`. `where` names the tensor and, for a stack, the expert.
void refuse_beyond_bf16(const std::string& where, std::span<const float> rows, int64_t row, int64_t k);

}  // namespace twofour
