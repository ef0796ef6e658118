#include "lib/base/names/config_pattern.h"

#include <algorithm>
#include <cctype>
#include <optional>
#include <string_view>

#include "formats/error.h"
#include "lib/base/names/pattern.h"

namespace twofour {
namespace {

void add_literal(std::string& regex, char c) {
  if (std::string_view("\\.+^$(){}[]|").find(c) != std::string_view::npos) regex += '\\';
  regex += c;
}

/// The position of the "]" that ends the character class which begins with the "[" at `open`. npos if that
/// "[" is a plain bracket. A "]" that comes first is a member of the class.
size_t class_end(std::string_view glob, size_t open) {
  const bool negated = glob.substr(open + 1).starts_with('!');
  return glob.find(']', open + (negated ? 3 : 2));
}

/// Adds a character class of these members to `regex`. A range that runs backwards is empty in Python's
/// fnmatch and an error in Python's regular expressions.
void add_class(std::string& regex, std::string_view members, bool negated) {
  std::string all;
  const auto add = [&](char c) {
    if (c == '-') all += '\\';
    add_literal(all, c);
  };
  for (size_t i = 0; i < members.size(); ++i) {
    const bool range = i + 2 < members.size() && members[i + 1] == '-';
    if (!range) {
      add(members[i]);
    } else {
      if (members[i] <= members[i + 2]) add(members[i]), all += '-', add(members[i + 2]);
      i += 2;
    }
  }
  if (all.empty())
    regex += negated ? "." : "(?!)";
  else
    regex += (negated ? "[^" : "[") + all + "]";
}

std::string glob_to_regex(std::string_view glob) {
  if (glob.starts_with("re:") || glob.find_first_of("*?[") == glob.npos) return std::string(glob);
  std::string regex = "re:";
  for (size_t i = 0; i < glob.size(); ++i) {
    const size_t end = glob[i] == '[' ? class_end(glob, i) : glob.npos;
    if (end != glob.npos) {
      const bool negated = glob[i + 1] == '!';
      const size_t first = i + (negated ? 2 : 1);
      add_class(regex, glob.substr(first, end - first), negated);
      i = end;
    } else if (glob[i] == '*') {
      regex += ".*";
    } else if (glob[i] == '?') {
      regex += '.';
    } else {
      add_literal(regex, glob[i]);
    }
  }
  return regex + '$';
}

/// A glob for a regular expression of plain characters, "." and ".*"; nullopt for any other.
std::optional<std::string> regex_to_glob(std::string_view regex) {
  std::string glob;
  bool open = true;  // Python's re.match requires a match at the beginning, not at the end
  if (regex.starts_with('^')) regex.remove_prefix(1);
  for (size_t i = 0; i < regex.size(); ++i) {
    if (regex[i] == '$' && i + 1 == regex.size()) {
      open = false;
    } else if (regex.substr(i).starts_with(".*")) {
      glob += '*';
      ++i;
    } else if (regex[i] == '.') {
      glob += '?';
    } else if (regex[i] == '\\' && i + 1 < regex.size() &&
               std::string_view("*?[\\").find(regex[i + 1]) == std::string_view::npos &&
               std::ispunct(static_cast<unsigned char>(regex[i + 1]))) {
      glob += regex[++i];
    } else if (std::string_view("\\+*?^$(){}[]|").find(regex[i]) == std::string_view::npos) {
      glob += regex[i];
    } else {
      return std::nullopt;
    }
  }
  if (open && !glob.ends_with('*')) glob += '*';
  return glob;
}

}  // namespace

std::vector<std::string> globs_to_regexes(const std::vector<std::string>& globs) {
  std::vector<std::string> regexes;
  for (const std::string& glob : globs) regexes.push_back(glob_to_regex(glob));
  return regexes;
}

std::vector<std::string> regexes_to_globs(const std::vector<std::string>& patterns,
                                          const std::vector<std::string>& names) {
  std::vector<std::string> globs;
  for (const std::string& text : patterns) {
    if (!text.starts_with("re:")) {
      globs.push_back(text);
    } else if (const auto glob = regex_to_glob(std::string_view(text).substr(3))) {
      globs.push_back(*glob);
    } else {
      const NamePattern pattern(text);
      for (const std::string& name : names) {
        if (pattern.matches(name)) globs.push_back(name);
      }
    }
  }
  return globs;
}

bool is_wild(const std::string& text) {
  return text.starts_with("re:") || text.find_first_of("*?[") != text.npos;
}

std::string without_digits(std::string_view name) {
  std::string folded(name);
  for (char& c : folded) c = c >= '0' && c <= '9' ? '0' : c;
  return folded;
}

bool may_be_pythons(std::string_view text) {
  if (text.size() > NamePattern::kLongestRegex ||
      std::count(text.begin(), text.end(), '(') > NamePattern::kMostGroups || has_ambiguous_class(text) ||
      repeated_repetition(text) == Repeated::kPossessive)
    return true;
  const auto one_of = [&](size_t at, std::string_view set) {
    return at < text.size() && set.find(text[at]) != set.npos;
  };
  bool is_pythons = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '\\' && one_of(++i, "AZ123456789")) return true;  // anchors, references to groups
    // Python's extensions of groups; others, such as the recursion (?R), are no pattern of Python's either.
    if (c == '(' && one_of(i + 1, "?")) {
      if (!one_of(i + 2, "<") && !one_of(i + 2, ":P#=!(>aiLmsux-")) return false;
      if (one_of(i + 2, "<") && !one_of(i + 3, "=!")) return false;
      is_pythons = true;
    }
    if (c == '{' && count_length(text.substr(i)) == 0) return true;  // a plain "{", {,4}, or large counts
  }
  return is_pythons;
}

ConfigPattern::ConfigPattern(const std::string& text) {
  std::string use = text;
  try {
    if (text.starts_with("re:")) {
      const auto globs = regexes_to_globs({text}, {});  // a glob is faster
      if (globs.size() == 1) use = globs[0];
    }
    pattern_.emplace(use);
  } catch (const Error&) {
    // known() reports it
  }
  tells_digits_ = use.find_first_of("0123456789[\\{") != use.npos;
}

bool ConfigPattern::matches(std::string_view name) const {
  return pattern_ && name.size() <= NamePattern::kLongestName && pattern_->matches(name);
}

PatternList::PatternList(const std::map<std::string, std::string>& texts) {
  for (const auto& [text, key] : texts) {
    if (!is_wild(text)) {
      exact_.insert(text);
      continue;
    }
    ConfigPattern pattern(text);
    all_known_ = all_known_ && pattern.known();
    (pattern.tells_digits() ? numbered_ : folded_).push_back(std::move(pattern));
  }
}

bool PatternList::matches(const std::string& name) {
  const auto match = [&](const std::string& n) {
    return [&n](const ConfigPattern& p) { return p.matches(n); };
  };
  if (exact_.count(name) > 0 || std::any_of(numbered_.begin(), numbered_.end(), match(name))) return true;
  if (folded_.empty()) return false;
  const auto [it, fresh] = seen_.try_emplace(without_digits(name), false);
  if (fresh) it->second = std::any_of(folded_.begin(), folded_.end(), match(it->first));
  return it->second;
}

}  // namespace twofour
