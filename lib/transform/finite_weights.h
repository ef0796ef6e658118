#pragma once
#include <cstdint>
#include <span>
#include <string>

namespace twofour {

/// The smallest float32 that BF16 rounds to infinity: half a last place above its largest number.
inline constexpr float kBeyondBf16 = 0x1.ffp127f;

/// Throws Error where one of rows [row, ...) of K weights becomes no finite number in BF16. `where` names the
/// tensor and, of a stack, the expert.
void refuse_beyond_bf16(const std::string& where, std::span<const float> rows, int64_t row, int64_t k);

}  // namespace twofour
