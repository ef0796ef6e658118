#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace twofour {

/// Tokens that a model sees at a time, and from which on it is judged: its predictions of tokens [first,
/// size).
struct EvalWindow {
  std::vector<int32_t> tokens;
  int64_t first = 1;
  int64_t predictions() const { return static_cast<int64_t>(tokens.size()) - first; }
};

/// Takes a text apart into windows of `context` tokens that begin `stride` tokens apart, up to the last
/// token. Each token but the first is predicted once: in the first window that has it, behind the tokens of
/// the window before. At most so many windows: no more are made.
std::vector<EvalWindow> cut_windows(std::span<const int32_t> text, int64_t context, int64_t stride,
                                    int64_t most = INT64_MAX);

}  // namespace twofour
