#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/json.h"

// What files of others say, which may be of any type: what is missing or of another type is empty.

namespace twofour {

/// The value of a key; null where it is missing or `json` is no object.
const Json& member(const Json& json, std::string_view key);
/// The members of an object, or of that under a key.
const Json::Object& members_of(const Json& object);
const Json::Object& members_of(const Json& json, std::string_view key);
/// A text, or that of a key.
std::string text_of(const Json& text);
std::string text_of(const Json& json, std::string_view key);
/// The strings of a list, or of that under a key; others are left out.
std::vector<std::string> strings_of(const Json& list);
std::vector<std::string> strings_of(const Json& json, std::string_view key);
/// The switch, or the whole number, of a key.
std::optional<bool> flag_of(const Json& json, std::string_view key);
std::optional<int64_t> integer_of(const Json& json, std::string_view key);
/// The two whole numbers of a list of two, as of rows and columns.
std::optional<std::pair<int64_t, int64_t>> pair_of(const Json& list);

}  // namespace twofour
