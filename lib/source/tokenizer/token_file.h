#pragma once
#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

namespace twofour {

/// Windows of tokens. Each window is a separate text of `width` ids.
struct TokenWindows {
  int64_t count = 0, width = 0;
  std::vector<int32_t> ids;  ///< [count, width]
  std::span<const int32_t> window(int64_t i) const {
    return std::span(ids).subspan(static_cast<size_t>(i * width), static_cast<size_t>(width));
  }
};

/// Reads token ids [W, T] of W windows of T tokens. The file is a safetensors file with one tensor, I32 or
/// I64, or NumPy's .npy of version 1 or 2 with '<i4' or '<i8' in C order. Its first bytes determine the
/// format. Throws Error on other files and on windows without tokens. Also throws Error, with row and
/// column, on an id that is negative or not below `vocabulary_size`.
TokenWindows read_token_file(const std::filesystem::path& path, int64_t vocabulary_size);

}  // namespace twofour
