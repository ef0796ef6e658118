#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/json.h"

// Access to JSON from other producers, where values may have any type: a missing value or one of another type
// is empty.

namespace twofour {

/// The value of a key; null if it is missing or `json` is no object.
const Json& member(const Json& json, std::string_view key);
/// The members of an object, or of the object under a key.
const Json::Object& members_of(const Json& object);
const Json::Object& members_of(const Json& json, std::string_view key);
/// A text, or the text under a key.
std::string text_of(const Json& text);
std::string text_of(const Json& json, std::string_view key);
/// The strings of a list, or of the list under a key; other items are left out.
std::vector<std::string> strings_of(const Json& list);
std::vector<std::string> strings_of(const Json& json, std::string_view key);
/// The boolean, or the integer, under a key.
std::optional<bool> flag_of(const Json& json, std::string_view key);
std::optional<int64_t> integer_of(const Json& json, std::string_view key);
/// The two integers of a list of two, such as rows and columns.
std::optional<std::pair<int64_t, int64_t>> pair_of(const Json& list);

}  // namespace twofour
