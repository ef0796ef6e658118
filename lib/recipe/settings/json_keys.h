#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/json.h"

namespace twofour {

/// The treatment of unknown keys in parts of a file whose keys decide bytes of an artifact.
enum class UnknownKeys { kRefuse, kIgnore };

/// Throws Error if `json` has a key that is not among `keys`, unless `unknown` ignores unknown keys. The
/// Error names the file `where`, the path `path` in it ("recipe.rules[0]") and the key, and gives advice.
/// Throws Json::exception if `json` is not an object.
void check_keys(std::string_view where, std::string_view path, const Json& json,
                std::span<const std::string_view> keys, UnknownKeys unknown);

/// The place of a value in a file, for messages.
struct JsonPlace {
  std::string_view where;
  std::string path;  ///< "recipe.rules[0]"
  UnknownKeys unknown;
  bool is_recipe_file = false;  ///< otherwise twofour.json or the prompt
  JsonPlace below(std::string_view key) const;
  /// Throws Error that the place was expected to hold `expected`, and that `found` was found. A setting that
  /// decides bytes must not be mistaken for another.
  [[noreturn]] void refuse(std::string_view expected, const Json& found) const;
};

/// A key of a T in twofour.json. Its row is used to write, read and recognize the key.
template <class T>
struct JsonKey {
  const char* key;
  Json (*write)(const T&);  ///< returns JSON null for a default, which is not written
  void (*read)(const JsonPlace&, const Json&, T&);
  bool is_required = false;
  static constexpr bool is_recorded = true;
};

/// Writes a T as a JSON object. `words` is a range of rows with the members of JsonKey. Rows whose
/// is_recorded is false are not in twofour.json.
template <class T>
Json write_keys(const auto& words, const T& value) {
  Json json = Json::object();
  for (const auto& word : words) {
    if (!word.is_recorded) continue;
    if (Json written = word.write(value); !written.is_null()) json[word.key] = std::move(written);
  }
  return json;
}

template <class T>
void read_keys(const auto& words, const JsonPlace& place, const Json& json, T& value) {
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
