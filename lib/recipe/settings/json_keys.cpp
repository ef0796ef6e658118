#include "lib/recipe/settings/json_keys.h"

#include <fmt/format.h>

#include <algorithm>

#include "formats/error.h"
#include "lib/base/findings/version.h"

namespace twofour {

void check_keys(std::string_view where, std::string_view path, const Json& json,
                std::span<const std::string_view> keys, UnknownKeys unknown) {
  if (unknown == UnknownKeys::kIgnore) return;
  for (const auto& [key, value] : json.items()) {
    if (std::find(keys.begin(), keys.end(), key) != keys.end()) continue;
    throw Error(
        fmt::format("{}: {}: expected keys that twofour {} knows, found {}: a newer twofour wrote it, and "
                    "only that reads it",
                    where, path, version(), json_quote_short(key)));
  }
}

JsonPlace JsonPlace::below(std::string_view key) const {
  return {where, fmt::format("{}.{}", path, key), unknown};
}

void JsonPlace::refuse(std::string_view expected, const Json& found) const {
  throw Error(
      fmt::format("{}: {}: expected {}, found {}", where, path, expected, json_line(found).substr(0, 80)));
}

}  // namespace twofour
