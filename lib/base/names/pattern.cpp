#include "lib/base/names/pattern.h"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <regex>
#include <utility>

#include "formats/error.h"
#include "formats/json.h"

namespace twofour {
namespace {

/// libstdc++ can match in time linear in the length of the name. libc++ counts the steps of a match, and
/// throws after 4096 steps for each byte of the name.
#ifdef __GLIBCXX__
constexpr auto kBounded = std::regex::ECMAScript | std::regex_constants::__polynomial;
#else
constexpr auto kBounded = std::regex::ECMAScript;
#endif

/// The only inline flag of Python's expressions that lists of modules use; std::regex knows none.
constexpr std::string_view kAnyCase = "(?i)";

/// True if a regular expression has one of Python's anchors, "\\A" or "\\Z". std::regex would take it for a
/// letter.
bool has_letter_anchor(std::string_view regex) {
  for (size_t i = 0; i + 1 < regex.size(); ++i) {
    if (regex[i] == '\\' && (regex[++i] == 'A' || regex[i] == 'Z')) return true;
  }
  return false;
}

/// True if a regular expression has a back-reference, which no matcher with linear time supports.
bool has_back_reference(std::string_view regex) {
  for (size_t i = 0; i + 1 < regex.size(); ++i) {
    if (regex[i] == '\\' && regex[++i] >= '1' && regex[i] <= '9') return true;
  }
  return false;
}

/// The length in bytes of the repetition at the beginning of `at`, without the "?" that makes it lazy. 0 if
/// `at` begins with no repetition.
size_t repetition_length(std::string_view at) {
  if (at.starts_with('{')) return count_length(at);
  return at.starts_with('*') || at.starts_with('+') || at.starts_with('?') ? 1 : 0;
}

/// fnmatch(3) takes a backslash for an escape, "[^" for "[!" and "[[:" for the beginning of a class name;
/// Python's fnmatch takes them literally.
std::string posix_glob(std::string_view glob) {
  std::string posix;
  for (const char c : glob) {
    if (c == '\\' || (posix.ends_with('[') && std::string_view("^:.=").find(c) != std::string_view::npos))
      posix += '\\';
    posix += c;
  }
  return posix;
}

}  // namespace

size_t count_length(std::string_view brace) {
  size_t i = 1;
  const auto skip_digits = [&] {
    const size_t first = i;
    while (i < brace.size() && brace[i] >= '0' && brace[i] <= '9') ++i;
    return i - first;
  };
  const size_t least = skip_digits();
  if (least == 0 || least > 3) return 0;
  if (brace.substr(i).starts_with(',')) {
    ++i;
    if (skip_digits() > 3) return 0;
  }
  return brace.substr(i).starts_with('}') ? i + 1 : 0;
}

Repeated repeated_repetition(std::string_view regex) {
  bool inside = false, opened = false;  // within a class; after a "(", where "?" is no repetition
  for (size_t i = 0; i < regex.size(); ++i) {
    const bool group = std::exchange(opened, !inside && regex[i] == '(');
    if (regex[i] == '\\') {
      ++i;
    } else if (inside) {
      inside = regex[i] != ']';
    } else if (regex[i] == '[') {
      inside = true;
      if (regex.substr(i + 1).starts_with('^')) ++i;
    } else if (const size_t length = group ? 0 : repetition_length(regex.substr(i))) {
      const std::string_view behind = regex.substr(i + length);
      if (behind.starts_with('+')) return Repeated::kPossessive;
      const size_t lazy = behind.starts_with('?') ? 1 : 0;
      if (repetition_length(behind.substr(lazy)) > 0) return Repeated::kWrong;
      i += length + lazy - 1;
    }
  }
  return Repeated::kNo;
}

bool has_ambiguous_class(std::string_view regex) {
  bool inside = false;
  const auto at = [&](size_t i, std::string_view any_of) {
    return i < regex.size() && any_of.find(regex[i]) != std::string_view::npos;
  };
  for (size_t i = 0; i < regex.size(); ++i) {
    if (regex[i] == '\\') {
      ++i;
    } else if (inside) {
      if (regex[i] == '[' && at(i + 1, ":.=")) return true;
      inside = regex[i] != ']';
    } else if (regex[i] == '[') {
      inside = true;
      if (at(i + 1, "^")) ++i;
      if (at(i + 1, "]")) return true;
    }
  }
  return false;
}

struct NamePattern::Regex {
  std::regex regex;
};

NamePattern::NamePattern(std::string text) : text_(std::move(text)) {
  if (!text_.starts_with("re:")) {
    glob_ = posix_glob(text_);
    return;
  }
  if (text_.size() > kLongestRegex || std::count(text_.begin(), text_.end(), '(') > kMostGroups) {
    throw Error(fmt::format("pattern {}: expected at most {} bytes and {} groups", json_quote_short(text_),
                            kLongestRegex, kMostGroups));
  }
  std::string_view regex = std::string_view(text_).substr(3);
  const bool any_case = regex.starts_with(kAnyCase);
  if (any_case) regex.remove_prefix(kAnyCase.size());
  if (has_letter_anchor(regex)) {
    throw Error(fmt::format("pattern '{}': expected ^ or $, found \\A or \\Z", text_));
  }
  if (has_ambiguous_class(regex)) {
    throw Error(fmt::format(
        "pattern '{}': expected \\] first in a class and \\[ before : . and =, found no \\", text_));
  }
  if (repeated_repetition(regex) != Repeated::kNo) {
    throw Error(fmt::format(
        "pattern '{}': expected parentheses around the repeated part, found a repetition of a repetition",
        text_));
  }
  try {
    if (has_back_reference(regex)) throw std::regex_error(std::regex_constants::error_backref);
    const auto flags = any_case ? kBounded | std::regex::icase : kBounded;
    regex_ = std::make_shared<Regex>(Regex{std::regex(regex.begin(), regex.end(), flags)});
  } catch (const std::regex_error&) {
    throw Error(fmt::format("pattern '{}': not a regular expression", text_));
  }
}

bool NamePattern::matches(std::string_view name) const {
  if (regex_) {
    if (name.size() > kLongestName) {
      throw Error(fmt::format("pattern '{}': expected names of at most {} bytes, found one of {}", text_,
                              kLongestName, name.size()));
    }
    try {
      return std::regex_search(name.begin(), name.end(), regex_->regex,
                               std::regex_constants::match_continuous);
    } catch (const std::regex_error&) {
      throw Error(fmt::format("pattern '{}': expected to match {} in few steps, found too many", text_,
                              json_quote_short(name)));
    }
  }
  return name == text_ || ::fnmatch(glob_.c_str(), std::string(name).c_str(), 0) == 0;
}

std::vector<NamePattern> parse_patterns(const std::vector<std::string>& texts) {
  return {texts.begin(), texts.end()};
}

bool any_matches(const std::vector<NamePattern>& patterns, std::string_view name) {
  return std::any_of(patterns.begin(), patterns.end(), [&](const NamePattern& p) { return p.matches(name); });
}

bool NamePattern::is_exact() const { return !regex_ && text_.find_first_of("*?[\\") == text_.npos; }

NamePattern exact_pattern(std::string_view name) {
  std::string text;
  if (name.starts_with("re:")) {
    text = "[r]";
    name.remove_prefix(1);
  }
  for (const char c : name) {
    const bool is_special = c == '*' || c == '?' || c == '[';
    text += is_special ? std::string{'[', c, ']'} : std::string{c};
  }
  return NamePattern(std::move(text));
}

Matcher::Matcher(const std::vector<NamePattern>& patterns) : patterns_(patterns), used_(patterns.size()) {
  for (size_t i = 0; i < patterns.size(); ++i) {
    if (patterns[i].is_exact()) {
      names_.emplace(patterns[i].text(), i);
    } else {
      others_.push_back(i);
    }
  }
}

bool Matcher::matches(std::string_view name) {
  bool any = false;
  const auto [first, last] = names_.equal_range(name);
  for (auto it = first; it != last; ++it) used_[it->second] = any = true;
  for (const size_t i : others_) {
    if (!patterns_[i].matches(name)) continue;
    used_[i] = any = true;
  }
  return any;
}

void Matcher::refuse_unused(const char* option, const char* expected) const {
  for (size_t i = 0; i < patterns_.size(); ++i) {
    if (used_[i]) continue;
    throw Error(
        fmt::format("{} '{}': expected to match {}, found none", option, patterns_[i].text(), expected));
  }
}

}  // namespace twofour
