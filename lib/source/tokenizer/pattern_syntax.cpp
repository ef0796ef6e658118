#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <iterator>

#include "formats/error.h"
#include "formats/json.h"
#include "lib/source/tokenizer/pattern.h"
#include "lib/source/tokenizer/unicode.h"

namespace twofour {
namespace {

constexpr size_t kLongest = 16'384;
constexpr size_t kDeepest = 100;
constexpr uint32_t kMostRepeats = 1000;
constexpr std::string_view kProperties[] = {"L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mn", "Mc", "Me", "N",
                                            "Nd", "Nl", "No", "P",  "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po",
                                            "S",  "Sm", "Sc", "Sk", "So", "Z",  "Zs", "Zl", "Zp", "Han"};

bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// Translates an expression piece by piece.
class Translator {
 public:
  Translator(std::string_view where, std::string_view in) : where_(where), in_(in) {}

  std::string run() {
    while (at_ < in_.size()) piece();
    if (!groups_.empty()) refuse(in_.size(), "')'");
    return std::move(out_);
  }

 private:
  [[noreturn]] void refuse(size_t at, const char* expected) const {
    const std::string_view rest = in_.substr(at, 32);
    throw Error(fmt::format("{}: expected {} at byte {} of a split pattern, found {} of {}", where_, expected,
                            at, rest.empty() ? "its end" : json_quote(replace_not_utf8(rest)),
                            json_quote_short(in_)));
  }
  bool take(std::string_view what) {
    if (!in_.substr(at_).starts_with(what)) return false;
    out_ += what;
    at_ += what.size();
    return true;
  }
  void copy_character() {
    const size_t begin = at_;
    next_character(in_, at_);
    out_ += in_.substr(begin, at_ - begin);
  }

  void piece() {
    switch (in_[at_]) {
      case '(':
        return open_group();
      case ')':
        if (groups_.empty()) refuse(at_, "no ')' without '('");
        caseless_ = groups_.back();
        groups_.pop_back();
        take(")");
        return repeats();
      case '[':
        character_class();
        return repeats();
      case '|':
      case '^':
      case '$':
        return copy_character();
      case '\\':
        if (take("\\A") || take("\\z")) return;
        escape(true);
        return repeats();
      case '*':
      case '+':
      case '?':
      case '{':
      case '}':
      case ']':
        refuse(at_, "something that repeats, or a backslash");
      default:
        copy_character();
        return repeats();
    }
  }

  void open_group() {
    if (groups_.size() == kDeepest) refuse(at_, "less nesting");
    groups_.push_back(caseless_);
    if (take("(?i:")) {
      caseless_ = true;
      return;
    }
    for (const char* kind : {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>"})
      if (take(kind)) return;
    if (in_.substr(at_).starts_with("(?")) refuse(at_, "(?:, (?i:, (?=, (?!, (?<=, (?<! or (?>");
    // The capture of this group is never used.
    ++at_;
    out_ += "(?:";
  }

  void repeats() {
    const size_t begin = at_;
    if (take("*") || take("+") || take("?")) {
      if (!take("?")) take("+");
    } else if (in_.substr(at_).starts_with("{")) {
      counted();
    } else {
      return;
    }
    if (at_ < in_.size() && std::string_view("*+?{").find(in_[at_]) != std::string_view::npos)
      refuse(begin, "one repetition at a time");
  }

  uint32_t number() {
    uint32_t n = 0;
    const size_t begin = at_;
    for (; at_ < in_.size() && is_digit(in_[at_]); ++at_) {
      n = n * 10 + static_cast<uint32_t>(in_[at_] - '0');
      if (n > kMostRepeats) refuse(begin, "at most 1000 repetitions");
    }
    return n;
  }

  void counted() {
    const size_t begin = at_++;
    const bool has_least = at_ < in_.size() && is_digit(in_[at_]);
    const uint32_t least = number();
    std::string count = fmt::format("{{{}", least);
    bool fixed = true;
    if (at_ < in_.size() && in_[at_] == ',') {
      fixed = false;
      ++at_;
      count += ',';
      const bool has_most = at_ < in_.size() && is_digit(in_[at_]);
      const uint32_t most = number();
      if (has_most && most < least) refuse(begin, "a larger number behind the smaller");
      if (has_most) count += fmt::format("{}", most);
      if (!has_least && !has_most) refuse(begin, "a number");
    } else if (!has_least) {
      refuse(begin, "a number of repetitions");
    }
    if (at_ == in_.size() || in_[at_] != '}') refuse(begin, "{n}, {n,}, {,n} or {n,m}");
    ++at_;
    out_ += count + '}';
    // A '?' after {n} makes the repetition optional in Ruby, but lazy in PCRE2.
    if (!fixed) take("?");
  }

  void character_class() {
    const size_t begin = at_;
    take("[");
    take("^");
    if (in_.substr(at_).starts_with("]")) refuse(at_, "a character, or a backslash,");
    while (at_ < in_.size() && in_[at_] != ']') {
      if (in_[at_] == '[') refuse(at_, "no class within a class, but a backslash,");
      if (in_.substr(at_).starts_with("&&")) refuse(at_, "no intersection of classes");
      if (in_[at_] == '\\') {
        escape(false);
      } else {
        copy_character();
      }
    }
    if (at_ == in_.size()) refuse(begin, "a class that ends");
    take("]");
  }

  void escape(bool outside) {
    const size_t begin = at_;
    const char c = at_ + 1 < in_.size() ? in_[at_ + 1] : '\0';
    if (std::string_view("nrtfsSdD").find(c) != std::string_view::npos && c != '\0') {
      out_ += in_.substr(at_, 2);
      at_ += 2;
    } else if (c == 'p' || c == 'P') {
      property();
    } else if (c == 'u' || c == 'x') {
      code_point(c == 'u');
    } else if (c > ' ' && c < 0x7F && std::isalnum(static_cast<unsigned char>(c)) == 0) {
      out_ += in_.substr(at_, 2);
      at_ += 2;
    } else {
      refuse(begin,
             outside ? "\\s, \\S, \\d, \\D, \\p{..}, \\n, \\r, \\t, \\f, \\xHH, \\uHHHH, \\A, \\z or a sign"
                     : "\\s, \\S, \\d, \\D, \\p{..}, \\n, \\r, \\t, \\f, \\xHH, \\uHHHH or a sign");
    }
  }

  void property() {
    const size_t begin = at_, open = at_ + 2, close = in_.find('}', at_);
    const std::string_view name = open < in_.size() && in_[open] == '{' && close != std::string_view::npos
                                      ? in_.substr(open + 1, close - open - 1)
                                      : std::string_view();
    if (std::find(std::begin(kProperties), std::end(kProperties), name) == std::end(kProperties))
      refuse(begin, "\\p{..} with a general category or Han");
    if (caseless_ && (name == "Lu" || name == "Ll" || name == "Lt"))
      refuse(begin, "no class of upper or lower case within (?i:");
    out_ += in_.substr(begin, close + 1 - begin);
    at_ = close + 1;
  }

  /// Translates \xHH below 80 (from 80 on, it would be a byte), \x{H..} and \uHHHH.
  void code_point(bool is_unicode) {
    const size_t begin = at_;
    at_ += 2;
    const bool braced = !is_unicode && at_ < in_.size() && in_[at_] == '{';
    if (braced) ++at_;
    const size_t most = braced ? 6 : is_unicode ? 4 : 2, first = at_;
    uint32_t c = 0;
    for (; at_ < in_.size() && at_ - first < most; ++at_) {
      const char d = in_[at_];
      const bool letter = (d >= 'a' && d <= 'f') || (d >= 'A' && d <= 'F');
      if (!is_digit(d) && !letter) break;
      c = c * 16 + static_cast<uint32_t>(is_digit(d) ? d - '0' : (d | 0x20) - 'a' + 10);
    }
    const bool whole = braced ? at_ > first && at_ < in_.size() && in_[at_] == '}' : at_ - first == most;
    const bool sound = c < 0x110000 && (c < 0xD800 || c > 0xDFFF) && (braced || is_unicode || c < 0x80);
    if (!whole || !sound) refuse(begin, "the number of a character");
    if (braced) ++at_;
    out_ += fmt::format("\\x{{{:x}}}", c);
  }

  std::string_view where_, in_;
  size_t at_ = 0;
  std::string out_;
  std::vector<bool> groups_;  ///< for each open group, true if case was ignored before it
  bool caseless_ = false;
};

}  // namespace

std::string pcre2_expression(std::string_view where, std::string_view expression) {
  if (expression.empty() || expression.size() > kLongest) {
    throw Error(fmt::format("{}: expected a split pattern of 1 to {} bytes, found {}", where, kLongest,
                            expression.size()));
  }
  return Translator(where, expression).run();
}

}  // namespace twofour
