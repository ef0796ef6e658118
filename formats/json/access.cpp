#include "formats/json/access.h"

namespace twofour {

const Json& member(const Json& json, std::string_view key) {
  static const Json none;
  const auto at = json.find(key);
  return at == json.end() ? none : *at;
}

const Json::Object& members_of(const Json& object) {
  static const Json none;
  return (object.is_object() ? object : none).items();
}
const Json::Object& members_of(const Json& json, std::string_view key) {
  return members_of(member(json, key));
}

std::string text_of(const Json& text) { return text.is_string() ? text.get<std::string>() : ""; }
std::string text_of(const Json& json, std::string_view key) { return text_of(member(json, key)); }

std::vector<std::string> strings_of(const Json& list) {
  std::vector<std::string> all;
  if (!list.is_array()) return all;
  for (const Json& item : list) {
    if (item.is_string()) all.push_back(item.get<std::string>());
  }
  return all;
}
std::vector<std::string> strings_of(const Json& json, std::string_view key) {
  return strings_of(member(json, key));
}

std::optional<bool> flag_of(const Json& json, std::string_view key) {
  const Json& value = member(json, key);
  return value.is_boolean() ? std::optional(value.get<bool>()) : std::nullopt;
}

std::optional<int64_t> integer_of(const Json& json, std::string_view key) {
  const Json& value = member(json, key);
  return value.is_number_integer() ? std::optional(value.get<int64_t>()) : std::nullopt;
}

std::optional<std::pair<int64_t, int64_t>> pair_of(const Json& list) {
  const bool is_pair =
      list.is_array() && list.size() == 2 && list[0].is_number_integer() && list[1].is_number_integer();
  return is_pair ? std::optional(std::pair(list[0].get<int64_t>(), list[1].get<int64_t>())) : std::nullopt;
}

}  // namespace twofour
