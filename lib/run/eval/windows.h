#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace twofour {

/// Tokens that a model sees at a time. Its predictions of tokens [first, size) are judged.
struct EvalWindow {
  std::vector<int32_t> tokens;
  int64_t first = 1;
  int64_t predictions() const { return static_cast<int64_t>(tokens.size()) - first; }
};

/// Cuts a text into windows of `context` tokens that begin `stride` tokens apart, up to the last token. Each
/// token but the first is predicted once: in the first window that has it, after the tokens of the previous
/// window. Makes at most `most` windows.
std::vector<EvalWindow> cut_windows(std::span<const int32_t> text, int64_t context, int64_t stride,
                                    int64_t most = INT64_MAX);

}  // namespace twofour
