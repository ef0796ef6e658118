#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/recipe/words/chosen.h"

namespace twofour {

/// A value of a YAML document, with its place for messages.
struct YamlNode {
  enum class Kind { kNull, kScalar, kSequence, kMap };
  Kind kind = Kind::kNull;
  bool quoted = false;  ///< a scalar that is a string even if it looks otherwise
  size_t line = 1;
  size_t column = 1;                 ///< in characters
  std::string text = {};             ///< of a scalar
  std::vector<YamlNode> items = {};  ///< of a sequence; the values of a map
  std::vector<YamlNode> keys = {};   ///< of a map, all scalars and different
};

inline constexpr size_t kLongestYaml = 1u << 20;  ///< bytes
inline constexpr size_t kDeepestYaml = 16;        ///< levels of lists and maps

/// The only document of a text; JSON is YAML, too. Throws Error "WHERE:LINE:COLUMN: ..." on text that is not
/// YAML in UTF-8, on control characters, on keys that are repeated or no text, on aliases, anchors, tags and
/// a second document, and beyond the limits above.
YamlNode parse_yaml(std::string_view where, std::string_view text);

/// Throws Error with a place.
[[noreturn]] void yaml_error(std::string_view where, const YamlNode& at, const std::string& problem);

/// A value with its path, "rules[2].granularity". Its functions throw Error "WHERE:LINE:COLUMN: PATH:
/// expected ..., found ..." if the value is something else.
struct YamlPlace {
  std::string_view where;
  std::string path;
  const YamlNode& node;

  [[noreturn]] void fail(const std::string& problem) const;
  [[noreturn]] void expected(std::string_view what) const;

  YamlPlace child(std::string_view key, const YamlNode& value) const;
  YamlPlace element(size_t i) const;
  /// A key of a map; nullopt if it is absent.
  std::optional<YamlPlace> find(std::string_view key) const;
  YamlPlace required(std::string_view key) const;

  const std::string& text(std::string_view what) const;
  /// Returns one of some words.
  template <class Words>
  const std::string& word(const Words& words) const {
    const std::string& given = text(either(words));
    if (std::find(std::begin(words), std::end(words), given) == std::end(words)) expected(either(words));
    return given;
  }
  bool boolean() const;
  /// A whole number from `least` to `most`.
  int64_t integer(int64_t least, int64_t most) const;
  /// A map with some of these keys and no others.
  void check_map(std::string_view what, const std::vector<std::string>& keys) const;
};

}  // namespace twofour
