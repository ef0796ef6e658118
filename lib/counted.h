#pragma once
#include <cstdint>
#include <string>

namespace twofour {

/// "1 file", "3 files".
inline std::string counted(uint64_t count, const std::string& noun) {
  return std::to_string(count) + " " + noun + (count == 1 ? "" : "s");
}

}  // namespace twofour
