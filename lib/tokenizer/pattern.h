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

/// A regular expression of a tokenizer.json. Those are Oniguruma's, in its Ruby syntax; PCRE2 runs them. Only
/// what means the same to both is taken; the rest is refused by name. Safe from several threads.
class Pattern {
 public:
  /// Throws Error naming `where` on other syntax.
  Pattern(std::string_view where, std::string_view expression);
  /// Of what is text, not an expression.
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
  /// `bytes` of all pieces together bound the work that is done on them. `pattern` must outlive it.
  Matcher(const Pattern& pattern, size_t bytes);
  ~Matcher();
  Matcher(Matcher&&) = delete;

  /// All matches in `piece`, in their order, without an empty one right behind another; valid until the next
  /// call. `piece` is as with_known_characters() gives it; lookarounds see no more than it. Throws Error
  /// where that takes more work than any expression of a tokenizer needs.
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

/// What PCRE2 reads for `expression`, with PCRE2_UTF, PCRE2_UCP, PCRE2_MULTILINE and newlines of one line
/// feed. Throws Error naming `where` on what is not taken.
std::string pcre2_expression(std::string_view where, std::string_view expression);

}  // namespace twofour
