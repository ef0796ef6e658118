#include <fmt/format.h>

#include <algorithm>

#include "kernels/device/check.h"
#include "lib/recipe/words/rule_words.h"

namespace twofour {
namespace {

/// Replaces names in braces, such as "{block}", by the option as it is typed: `--block`.
std::string with_options(std::string_view text) {
  std::string all;
  for (size_t at = 0; at < text.size();) {
    const size_t open = std::min(text.find('{', at), text.size()), close = text.find('}', open);
    all += text.substr(at, open - at);
    if (close == text.npos) break;
    all += spelled(text.substr(open + 1, close - open - 1), Author::kPrompt);
    at = close + 1;
  }
  return all;
}

std::string joined(const std::vector<HelpPart>& parts, const char* HelpPart::*text, unsigned command) {
  std::string all;
  for (const HelpPart& part : parts) {
    if (part.commands & command) all += part.*text;
  }
  return with_options(all);
}

std::vector<const RuleWord*> words_in_order(int AskedWord::Places::*at, const auto& has) {
  std::vector<const RuleWord*> words;
  for (const RuleWord& word : rule_words()) {
    if (word.is_asked() && has(word)) words.push_back(&word);
  }
  std::stable_sort(words.begin(), words.end(), [&](const RuleWord* a, const RuleWord* b) {
    return a->asked.place.*at < b->asked.place.*at;
  });
  return words;
}

}  // namespace

bool RuleWord::has_option(unsigned command) const {
  return std::any_of(asked.help.begin(), asked.help.end(),
                     [&](const HelpPart& part) { return (part.commands & command) != 0; });
}

void RuleWord::read(const JsonPlace& place, const Json& json, Rule& rule) const {
  if (!take(place, json, rule)) place.refuse(file_values(), json);
}

std::string RuleWord::given(const Rule& rule) const {
  const Json value = write(rule);
  if (value.is_null() || (is_required && value == asked.values(kConverts)[0])) return "";
  return value.is_string() ? value.get<std::string>() : json_line(value);
}

std::string RuleWord::option_help(unsigned command) const {
  return joined(asked.help, &HelpPart::text, command);
}

std::string RuleWord::option_fallback(unsigned command) const {
  return joined(asked.help, &HelpPart::fallback, command);
}

std::string RuleWord::file_help() const {
  const char* fallback = *asked.file_fallback != '\0' ? asked.file_fallback : asked.help[0].fallback;
  return with_options(fmt::format("{} (default: {})", asked.file_help, fallback));
}

std::string RuleWord::file_values() const {
  if (asked.form == AskedWord::Form::kFlag) return "true or false";
  if (asked.form == AskedWord::Form::kNumber) return fmt::format("0 to {}", asked.most);
  return either(asked.values(kConverts));
}

const RuleWord& rule_word(std::string_view key) {
  const auto& all = rule_words();
  const auto at = std::find_if(all.begin(), all.end(), [&](const RuleWord& w) { return w.key == key; });
  check(at != all.end(), "a word of rules");
  return *at;
}

std::vector<const RuleWord*> words_of_options(unsigned command) {
  return words_in_order(&AskedWord::Places::option, [&](const RuleWord& w) { return w.has_option(command); });
}

std::vector<const RuleWord*> words_of_files() {
  return words_in_order(&AskedWord::Places::file,
                        [](const RuleWord& w) { return *w.asked.file_help != '\0'; });
}

bool same_words(const Rule& a, const Rule& b) {
  return a.statistics_hash == b.statistics_hash && a.mask_hash == b.mask_hash &&
         std::all_of(rule_words().begin(), rule_words().end(), [&](const RuleWord& word) {
           return !word.is_asked() || word.given(a) == word.given(b);
         });
}

}  // namespace twofour
