#include "lib/hash.h"

#include <fmt/format.h>

namespace twofour {

std::string Hash128::hex() const { return fmt::format("{:016x}{:016x}", high, low); }

Hash128 hash_text(std::string_view text) {
  return hash_bytes({reinterpret_cast<const uint8_t*>(text.data()), text.size()});
}

}  // namespace twofour
