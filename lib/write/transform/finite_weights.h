#pragma once
#include <cstdint>
#include <span>
#include <string>

#include "formats/half.h"

namespace twofour {

/// Throws Error if a weight in rows [row, ...) of K weights is not finite in BF16. `where` names the tensor
/// and, for a stack, the expert.
void refuse_beyond_bf16(const std::string& where, std::span<const float> rows, int64_t row, int64_t k);

}  // namespace twofour
