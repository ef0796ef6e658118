#include "lib/names/config_pattern.h"

#include <algorithm>

#include "formats/error.h"
#include "lib/quantization_config.h"

namespace twofour {

bool is_wild(const std::string& text) {
  return text.starts_with("re:") || text.find_first_of("*?[") != text.npos;
}

std::string without_digits(std::string_view name) {
  std::string folded(name);
  for (char& c : folded) c = c >= '0' && c <= '9' ? '0' : c;
  return folded;
}

bool may_be_pythons(std::string_view text) {
  if (text.size() > Pattern::kLongestRegex ||
      std::count(text.begin(), text.end(), '(') > Pattern::kMostGroups || has_ambiguous_class(text) ||
      repeated_repetition(text) == Repeated::kPossessive)
    return true;
  const auto one_of = [&](size_t at, std::string_view set) {
    return at < text.size() && set.find(text[at]) != set.npos;
  };
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '\\' && one_of(++i, "AZ123456789")) return true;  // anchors, references to groups
    if (c == '(' && one_of(i + 1, "?")) return true;
    if (c == '{' && count_length(text.substr(i)) == 0) return true;  // itself, {,4}, or a large count
  }
  return false;
}

ConfigPattern::ConfigPattern(const std::string& text) {
  std::string use = text;
  try {
    if (text.starts_with("re:")) {
      const auto globs = regexes_to_globs({text}, {});  // as a glob it is fast
      if (globs.size() == 1) use = globs[0];
    }
    pattern_.emplace(use);
  } catch (const Error&) {
    // known() says so
  }
  tells_digits_ = use.find_first_of("0123456789[\\{") != use.npos;
}

bool ConfigPattern::matches(std::string_view name) const {
  return pattern_ && name.size() <= Pattern::kLongestName && pattern_->matches(name);
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
