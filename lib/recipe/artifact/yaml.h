#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/recipe/settings/chosen.h"

namespace twofour {

/// A value of a YAML document, with its line and column for messages.
struct YamlNode {
  enum class Kind { kNull, kScalar, kSequence, kMap };
  Kind kind = Kind::kNull;
  bool quoted = false;  ///< a scalar in quotes, which is always a string
  size_t line = 1;
  size_t column = 1;                 ///< in characters
  std::string text = {};             ///< the value of a scalar
  std::vector<YamlNode> items = {};  ///< elements of a sequence, or values of a map
  std::vector<YamlNode> keys = {};   ///< keys of a map, which are different scalars
};

inline constexpr size_t kLongestYaml = 1u << 20;  ///< bytes
inline constexpr size_t kDeepestYaml = 16;        ///< levels of lists and maps

/// Parses a text with one YAML document. JSON is also YAML. Throws Error "WHERE:LINE:COLUMN: ..." on text
/// that is not YAML in UTF-8, on control characters, on keys that are repeated or not texts, on aliases,
/// anchors and tags, on a second document, and on text that exceeds a limit above.
YamlNode parse_yaml(std::string_view where, std::string_view text);

/// Throws Error "WHERE:LINE:COLUMN: PROBLEM" with the place of a node.
[[noreturn]] void yaml_error(std::string_view where, const YamlNode& at, const std::string& problem);

/// A value of a document with its path, "rules[2].granularity". If the value is not what a function expects,
/// the function throws Error "WHERE:LINE:COLUMN: PATH: expected ..., found ...".
struct YamlPlace {
  std::string_view where;
  std::string path;
  const YamlNode& node;

  [[noreturn]] void fail(const std::string& problem) const;
  [[noreturn]] void expected(std::string_view what) const;

  YamlPlace child(std::string_view key, const YamlNode& value) const;
  YamlPlace element(size_t i) const;
  /// The value of a key of a map. Empty if the key is absent.
  std::optional<YamlPlace> find(std::string_view key) const;
  YamlPlace required(std::string_view key) const;

  const std::string& text(std::string_view what) const;
  /// Returns the text, which must be one of `words`.
  template <class Words>
  const std::string& word(const Words& words) const {
    const std::string& given = text(either(words));
    if (std::find(std::begin(words), std::end(words), given) == std::end(words)) expected(either(words));
    return given;
  }
  bool boolean() const;
  /// Returns the value as a whole number, which must be from `least` to `most`.
  int64_t integer(int64_t least, int64_t most) const;
  /// Checks that the value is a map that has only keys from `keys`. `what` names the map in messages.
  void check_map(std::string_view what, const std::vector<std::string>& keys) const;
};

}  // namespace twofour
