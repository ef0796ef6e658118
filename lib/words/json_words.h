#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/json.h"

namespace twofour {

/// What a reader does about keys that it does not know where keys decide bytes.
enum class UnknownKeys { kRefuse, kIgnore };

/// Throws Error naming `where`, the path there ("recipe.rules[0]"), the key and what to do if `json` has a
/// key that is not among `keys`, unless unknown ones are ignored. Throws Json::exception where it is no
/// object.
void check_keys(std::string_view where, std::string_view path, const Json& json,
                std::span<const std::string_view> keys, UnknownKeys unknown);

/// Where a value is in a file, for messages.
struct JsonPlace {
  std::string_view where;
  std::string path;  ///< "recipe.rules[0]"
  UnknownKeys unknown;
  bool is_recipe_file = false;  ///< written by people; else twofour.json, or at the prompt
  JsonPlace below(std::string_view key) const;
  /// A word that decides bytes may not be read as another.
  [[noreturn]] void refuse(std::string_view expected, const Json& found) const;
};

/// A key of a T in twofour.json: one row writes it, reads it and makes it known.
template <class T>
struct JsonWord {
  const char* key;
  Json (*write)(const T&);  ///< null: it is not written, for a T without it is the same
  void (*read)(const JsonPlace&, const Json&, T&);
  bool is_required = false;
  static constexpr bool is_recorded = true;
};

/// `words`: a range of rows with what JsonWord has; those that are not recorded are not of twofour.json.
template <class T>
Json write_words(const auto& words, const T& value) {
  Json json = Json::object();
  for (const auto& word : words) {
    if (!word.is_recorded) continue;
    if (Json written = word.write(value); !written.is_null()) json[word.key] = std::move(written);
  }
  return json;
}

template <class T>
void read_words(const auto& words, const JsonPlace& place, const Json& json, T& value) {
  std::vector<std::string_view> keys;
  for (const auto& word : words) {
    if (word.is_recorded) keys.emplace_back(word.key);
  }
  check_keys(place.where, place.path, json, keys, place.unknown);
  for (const auto& word : words) {
    if (!word.is_recorded || !(word.is_required || json.contains(word.key))) continue;
    word.read(place.below(word.key), json.at(word.key), value);
  }
}

}  // namespace twofour
