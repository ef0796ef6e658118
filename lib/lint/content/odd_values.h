#pragma once
#include <cstdint>
#include <string>

#include "lib/lint/bytes/figures.h"

namespace twofour {

/// With fewer numbers, shares are meaningless.
inline constexpr uint64_t kFewNumbers = 2048;
inline constexpr const char* kNoise = "every code equally often, as of noise";

/// Describes four-bit codes that cannot be E2M1 codes of weights. Empty: they may be.
std::string odd_codes(const MatrixFigures& figures);

/// Describes INT4 codes that cannot be codes of weights. Weights are rounded to steps of the largest weight
/// of a group, so the zero point is the most frequent code. It is 8, or seldom far from 8
/// if each group has a zero point.
std::string odd_integers(const MatrixFigures& figures);

/// Describes floats or FP8 numbers that cannot be weights.
std::string odd_numbers(const MatrixFigures& figures, bool rows);

}  // namespace twofour
