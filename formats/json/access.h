#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/json.h"

// Access to JSON from other producers, where a value may have any type. If a value is missing or has another
// type, the functions return an empty result.

namespace twofour {

/// Returns the value under a key. Returns null if the key is missing or `json` is not an object.
const Json& member(const Json& json, std::string_view key);
/// Returns the members of an object, or of the object under a key.
const Json::Object& members_of(const Json& object);
const Json::Object& members_of(const Json& json, std::string_view key);
/// Returns the text that a value holds, or the text under a key.
std::string text_of(const Json& text);
std::string text_of(const Json& json, std::string_view key);
/// Returns the strings of a list, or of the list under a key. Items of other types are left out.
std::vector<std::string> strings_of(const Json& list);
std::vector<std::string> strings_of(const Json& json, std::string_view key);
/// Returns the boolean, or the integer, under a key.
std::optional<bool> flag_of(const Json& json, std::string_view key);
std::optional<int64_t> integer_of(const Json& json, std::string_view key);
/// Returns the two integers of a list of length two, such as rows and columns.
std::optional<std::pair<int64_t, int64_t>> pair_of(const Json& list);

}  // namespace twofour
