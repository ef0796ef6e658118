#pragma once
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace twofour {

/// A pattern over module names as in the ignore lists of checkpoints: an exact name, a glob with * ? [ ], as
/// Python's fnmatch has them, or `re:` and a regular expression that must match from the start (Python's
/// re.match); one that begins with (?i) takes letters of either case.
class NamePattern {
 public:
  // Expressions come from config.json, too, and each state of their machine may be a level of recursion.
  static constexpr size_t kLongestRegex = 4096;  ///< bytes
  static constexpr std::ptrdiff_t kMostGroups = 256;
  static constexpr size_t kLongestName = 4096;  ///< bytes, of what a regular expression matches

  explicit NamePattern(std::string text);     ///< throws Error where the regular expression is not one
  bool matches(std::string_view name) const;  ///< throws Error on names too long for a regular expression
  const std::string& text() const { return text_; }
  /// Whether it is a name, which nothing else matches.
  bool is_exact() const;

 private:
  struct Regex;
  std::string text_, glob_;
  std::shared_ptr<const Regex> regex_;
};

/// Whether a regular expression has a class that Python reads in another way than std::regex: one that begins
/// with "]", a member to Python and the end to the other, or one that has "[:", "[." or "[=", two members to
/// Python and a name's beginning to the other.
bool has_ambiguous_class(std::string_view regex);

/// Bytes of the count that begins at a "{", if Python and std::regex both take it for one: {3}, {3,}, {3,4},
/// none large. 0: they do not.
size_t count_length(std::string_view brace);

/// A repetition that is repeated without parentheses: std::regex does so, to Python "a*+" gives nothing back,
/// and others are errors.
enum class Repeated { kNo, kPossessive, kWrong };
Repeated repeated_repetition(std::string_view regex);

/// The pattern that matches `name` alone.
NamePattern exact_pattern(std::string_view name);

/// Splits what users typed into patterns.
std::vector<NamePattern> parse_patterns(const std::vector<std::string>& texts);

/// Whether any of `patterns` matches.
bool any_matches(const std::vector<NamePattern>& patterns, std::string_view name);

/// Matches names against patterns and remembers which patterns matched: one that never does is an error.
class Matcher {
 public:
  /// `patterns` must outlive it.
  explicit Matcher(const std::vector<NamePattern>& patterns);
  bool matches(std::string_view name);
  /// Throws Error for the first pattern that matched nothing: "OPTION 'x': expected to match EXPECTED".
  void refuse_unused(const char* option, const char* expected) const;

 private:
  const std::vector<NamePattern>& patterns_;
  std::vector<bool> used_;
  std::unordered_multimap<std::string_view, size_t> names_;  ///< those that are names
  std::vector<size_t> others_;
};

}  // namespace twofour
