#pragma once
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace twofour {

/// The bytes [begin, end) of a text.
struct Span {
  size_t begin, end;
  bool empty() const { return begin == end; }
};

/// A regular expression of a tokenizer.json. Its syntax is Oniguruma's for Ruby, and PCRE2 runs it. Only
/// syntax that has the same meaning in both is accepted. Other syntax is refused with its name. Several
/// threads may use a pattern at once.
class Pattern {
 public:
  /// Throws Error naming `where` on syntax that is not accepted.
  Pattern(std::string_view where, std::string_view expression);
  /// Makes a pattern that matches `text` literally.
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
  /// `bytes` is the total size of all pieces, which bounds the work. `pattern` must outlive this object.
  Matcher(const Pattern& pattern, size_t bytes);
  ~Matcher();
  Matcher(Matcher&&) = delete;

  /// Returns all matches in `piece`, in order. An empty match directly after another match is left out. The
  /// result is valid until the next call. `piece` must come from with_known_characters(). Lookarounds see
  /// only `piece`. Throws Error if matching takes more work than any real tokenizer's expression needs.
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

/// Translates `expression` for PCRE2 with the options PCRE2_UTF, PCRE2_UCP and PCRE2_MULTILINE, in which a
/// newline is one line feed. Throws Error naming `where` on unsupported syntax.
std::string pcre2_expression(std::string_view where, std::string_view expression);

}  // namespace twofour
