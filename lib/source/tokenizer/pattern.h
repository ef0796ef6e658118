#pragma once
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace twofour {

/// Bytes [begin, end) of a text.
struct Span {
  size_t begin, end;
  bool empty() const { return begin == end; }
};

/// A regular expression of a tokenizer.json. These have Oniguruma's Ruby syntax; PCRE2 runs them. Only syntax
/// that means the same to both is accepted; the rest is refused by name. Safe from several threads.
class Pattern {
 public:
  /// Throws Error naming `where` on other syntax.
  Pattern(std::string_view where, std::string_view expression);
  /// A pattern for a plain text, not an expression.
  static Pattern literal(std::string_view where, std::string_view text);
  ~Pattern();
  Pattern(Pattern&&) noexcept;
  Pattern& operator=(Pattern&&) noexcept;

  class Matcher;

 private:
  struct Compiled;
  std::unique_ptr<Compiled> compiled_;
};

/// Finds matches in the pieces of one text.
class Pattern::Matcher {
 public:
  /// `bytes` is the size of all pieces together, which bounds the work on them. `pattern` must outlive it.
  Matcher(const Pattern& pattern, size_t bytes);
  ~Matcher();
  Matcher(Matcher&&) = delete;

  /// All matches in `piece`, in their order, without an empty match directly behind another match; valid
  /// until the next call. `piece` must come from with_known_characters(); lookarounds see no more than it.
  /// Throws Error if that takes more work than any expression of a tokenizer needs.
  const std::vector<Span>& find_all(std::string_view piece);

 private:
  enum class Result { kMatch, kNone, kTooMuch };
  Result find(std::string_view text, size_t from, Span& match);
  Result find_at(std::string_view text, size_t at, Span& match);

  struct State;
  const Compiled& compiled_;
  size_t bytes_;
  std::unique_ptr<State> state_;
  std::vector<Span> matches_;
};

/// The equivalent of `expression` for PCRE2, with PCRE2_UTF, PCRE2_UCP, PCRE2_MULTILINE and newlines of one
/// line feed. Throws Error naming `where` on unsupported syntax.
std::string pcre2_expression(std::string_view where, std::string_view expression);

}  // namespace twofour
