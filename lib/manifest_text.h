#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "formats/json.h"

namespace twofour {

/// Looks at each object and array of a document as nlohmann-json's parser ends it; what it takes, by
/// returning false, is forgotten.
using TakeJson = std::function<bool(int depth, Json::parse_event_t event, Json& json)>;

/// Parses a twofour.json of an artifact of that many tensors piece by piece, so that it needs no memory but
/// for what `take` keeps. Returns what was left, with the manifest's damage (see manifest_damage()). Throws
/// Error naming the file where it is longer, or has more to take, than such an artifact's can be, and on what
/// is no JSON; of `take`, what it throws.
struct ManifestText {
  Json json;
  std::string damage;
};
ManifestText parse_manifest_text(const std::filesystem::path& path, size_t tensors, const TakeJson& take);

/// The bits of a float32, which stand there as eight hexadecimal digits. Throws Error naming `where` on
/// anything else.
uint32_t parse_bits(std::string_view where, const Json& json);

}  // namespace twofour
