#pragma once
#include <cstdint>
#include <string>

namespace twofour {

/// "1 file", "3 files"; `nouns` where the plural takes more than an s.
inline std::string counted(uint64_t count, const std::string& noun, const std::string& nouns = "") {
  if (count == 1) return "1 " + noun;
  return std::to_string(count) + " " + (nouns.empty() ? noun + "s" : nouns);
}

}  // namespace twofour
