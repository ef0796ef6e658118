#pragma once
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace twofour {

/// A pattern over module names as in the ignore lists of checkpoints. It is an exact name, a glob with * ? [
/// ] as in Python's fnmatch, or `re:` and a regular expression that must match from the start (Python's
/// re.match). An expression that begins with (?i) ignores case.
class NamePattern {
 public:
  // Expressions also come from config.json, and each state of the matcher may be a level of recursion.
  static constexpr size_t kLongestRegex = 4096;  ///< bytes
  static constexpr std::ptrdiff_t kMostGroups = 256;
  static constexpr size_t kLongestName = 4096;  ///< bytes of a name, if the pattern is a regex

  explicit NamePattern(std::string text);     ///< throws Error if the regular expression is not valid
  bool matches(std::string_view name) const;  ///< throws Error on names too long for a regular expression
  const std::string& text() const { return text_; }
  /// True if the pattern is an exact name, which matches only itself.
  bool is_exact() const;

 private:
  struct Regex;
  std::string text_, glob_;
  std::shared_ptr<const Regex> regex_;
};

/// True if a regular expression has a class that Python reads differently from std::regex: one that begins
/// with "]", which is a member in Python and the end in std::regex, or one that has "[:", "[." or "[=", which
/// are two members in Python and the beginning of a class name in std::regex.
bool has_ambiguous_class(std::string_view regex);

/// The length in bytes of the repetition count that begins at a "{": {3}, {3,} or {3,4}, without large
/// numbers. 0 if Python or std::regex does not read it as a count.
size_t count_length(std::string_view brace);

/// A repetition that is repeated without parentheses. std::regex accepts it. In Python, "a*+" is possessive,
/// and all others are errors.
enum class Repeated { kNo, kPossessive, kWrong };
Repeated repeated_repetition(std::string_view regex);

/// The pattern that matches `name` alone.
NamePattern exact_pattern(std::string_view name);

/// Splits users' texts into patterns.
std::vector<NamePattern> parse_patterns(const std::vector<std::string>& texts);

/// True if any of `patterns` matches.
bool any_matches(const std::vector<NamePattern>& patterns, std::string_view name);

/// Matches names against patterns and remembers which patterns matched, because a pattern that matches
/// nothing is an error.
class Matcher {
 public:
  /// `patterns` must outlive the matcher.
  explicit Matcher(const std::vector<NamePattern>& patterns);
  bool matches(std::string_view name);
  /// Throws Error for the first pattern that matched nothing: "OPTION 'x': expected to match EXPECTED".
  void refuse_unused(const char* option, const char* expected) const;

 private:
  const std::vector<NamePattern>& patterns_;
  std::vector<bool> used_;
  std::unordered_multimap<std::string_view, size_t> names_;  ///< the patterns that are exact names
  std::vector<size_t> others_;
};

}  // namespace twofour
