#include "lib/hash.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "lib/file.h"

namespace twofour {

std::string Hash128::hex() const { return fmt::format("{:016x}{:016x}", high, low); }

Hash128 hash_text(std::string_view text) {
  return hash_bytes({reinterpret_cast<const uint8_t*>(text.data()), text.size()});
}

Hash128 hash_file(const std::filesystem::path& path) {
  const InputFile file(path);
  Hasher hasher;
  std::vector<uint8_t> buffer(1u << 20);
  for (uint64_t at = 0; at < file.size(); at += buffer.size()) {
    const std::span<uint8_t> piece(buffer.data(), std::min<uint64_t>(buffer.size(), file.size() - at));
    file.read(at, piece);
    hasher.update(piece);
  }
  return hasher.digest();
}

}  // namespace twofour
