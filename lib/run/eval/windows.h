#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace twofour {

/// Tokens that a model sees in one go. Its predictions of tokens [first, size) are evaluated.
struct EvalWindow {
  std::vector<int32_t> tokens;
  int64_t first = 1;
  int64_t predictions() const { return static_cast<int64_t>(tokens.size()) - first; }
};

/// Cuts a text into at most `most` windows of `context` tokens, which begin `stride` tokens apart. Windows go
/// on up to the last token of the text. Each token except the first is predicted once, in the first window
/// that contains it. There it follows tokens of the previous window.
std::vector<EvalWindow> cut_windows(std::span<const int32_t> text, int64_t context, int64_t stride,
                                    int64_t most = INT64_MAX);

}  // namespace twofour
