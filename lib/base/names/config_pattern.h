#pragma once
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "lib/base/names/pattern.h"

namespace twofour {

/// Converts globs to regular expressions that match the same names: "*.mlp.gate" becomes
/// "re:.*\\.mlp\\.gate$". Exact names stay.
std::vector<std::string> globs_to_regexes(const std::vector<std::string>& globs);

/// Converts ignore patterns of compressed-tensors to globs that match the same names. A regular expression
/// that no glob can express is replaced by those of `names` that it matches.
std::vector<std::string> regexes_to_globs(const std::vector<std::string>& patterns,
                                          const std::vector<std::string>& names);

/// True if an entry of a config's list is a pattern and not a name.
bool is_wild(const std::string& text);

/// `name` with every digit replaced by 0. Names differ mostly in their numbers, and few patterns distinguish
/// digits, so a result for one name holds for many. This matters because regular expressions are slow and
/// experts are many.
std::string without_digits(std::string_view name);

/// True if an expression that we cannot evaluate may be valid in Python: it is long, or uses features that
/// only Python has.
bool may_be_pythons(std::string_view text);

/// One pattern of a config.
class ConfigPattern {
 public:
  explicit ConfigPattern(const std::string& text);
  /// True if we can evaluate the pattern. If not, Python may still accept it, and callers only report that it
  /// is there.
  bool known() const { return pattern_.has_value(); }
  bool tells_digits() const { return tells_digits_; }
  bool matches(std::string_view name) const;

 private:
  bool tells_digits_ = false;
  std::optional<NamePattern> pattern_;
};

/// A config's list of patterns and names.
class PatternList {
 public:
  /// Takes the keys of `texts` as patterns.
  explicit PatternList(const std::map<std::string, std::string>& texts);
  bool matches(const std::string& name);
  bool all_known() const { return all_known_; }

 private:
  std::unordered_set<std::string> exact_;
  std::vector<ConfigPattern> numbered_, folded_;
  std::unordered_map<std::string, bool> seen_;
  bool all_known_ = true;
};

}  // namespace twofour
