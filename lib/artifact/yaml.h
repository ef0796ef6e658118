#pragma once
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace twofour {

/// A value of a YAML document, with its place for messages.
struct YamlNode {
  enum class Kind { kNull, kScalar, kSequence, kMap };
  Kind kind = Kind::kNull;
  bool quoted = false;  ///< a scalar that is a string, whatever it looks like
  size_t line = 1;
  size_t column = 1;                 ///< in characters
  std::string text = {};             ///< of a scalar
  std::vector<YamlNode> items = {};  ///< of a sequence; of a map its values
  std::vector<YamlNode> keys = {};   ///< of a map, all scalars and different
};

inline constexpr size_t kLongestYaml = 1u << 20;  ///< bytes
inline constexpr size_t kDeepestYaml = 16;        ///< lists and maps within each other

/// The one document of a text; JSON is YAML, too. Throws Error "WHERE:LINE:COLUMN: ..." on what is not YAML
/// in UTF-8, on control characters, keys that are twice or no text, aliases, anchors, tags, a second
/// document, and beyond the limits above.
YamlNode parse_yaml(std::string_view where, std::string_view text);

/// An Error at a place.
[[noreturn]] void yaml_error(std::string_view where, const YamlNode& at, const std::string& problem);

}  // namespace twofour
