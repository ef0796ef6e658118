#include <fmt/format.h>

#include <algorithm>

#include "kernels/device/check.h"
#include "lib/recipe/settings/rule_settings.h"

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

std::vector<const RuleSetting*> settings_in_order(int UserForm::Places::*at, const auto& has) {
  std::vector<const RuleSetting*> words;
  for (const RuleSetting& word : rule_settings()) {
    if (word.has_user_form() && has(word)) words.push_back(&word);
  }
  std::stable_sort(words.begin(), words.end(), [&](const RuleSetting* a, const RuleSetting* b) {
    return a->asked.place.*at < b->asked.place.*at;
  });
  return words;
}

}  // namespace

bool RuleSetting::has_option(unsigned command) const {
  return std::any_of(asked.help.begin(), asked.help.end(),
                     [&](const HelpPart& part) { return (part.commands & command) != 0; });
}

void RuleSetting::read(const JsonPlace& place, const Json& json, Rule& rule) const {
  if (!take(place, json, rule)) place.refuse(file_values(), json);
}

std::string RuleSetting::given(const Rule& rule) const {
  const Json value = write(rule);
  if (value.is_null() || (is_required && value == asked.values(kConverts)[0])) return "";
  return value.is_string() ? value.get<std::string>() : json_line(value);
}

std::string RuleSetting::option_help(unsigned command) const {
  return joined(asked.help, &HelpPart::text, command);
}

std::string RuleSetting::option_fallback(unsigned command) const {
  return joined(asked.help, &HelpPart::fallback, command);
}

std::string RuleSetting::file_help() const {
  const char* fallback = *asked.file_fallback != '\0' ? asked.file_fallback : asked.help[0].fallback;
  return with_options(fmt::format("{} (default: {})", asked.file_help, fallback));
}

std::string RuleSetting::file_values() const {
  if (asked.form == UserForm::Form::kFlag) return "true or false";
  if (asked.form == UserForm::Form::kNumber) return fmt::format("0 to {}", asked.most);
  return either(asked.values(kConverts));
}

const RuleSetting& rule_setting(std::string_view key) {
  const auto& all = rule_settings();
  const auto at = std::find_if(all.begin(), all.end(), [&](const RuleSetting& w) { return w.key == key; });
  check(at != all.end(), "a word of rules");
  return *at;
}

std::vector<const RuleSetting*> option_settings(unsigned command) {
  return settings_in_order(&UserForm::Places::option,
                           [&](const RuleSetting& w) { return w.has_option(command); });
}

std::vector<const RuleSetting*> file_settings() {
  return settings_in_order(&UserForm::Places::file,
                           [](const RuleSetting& w) { return *w.asked.file_help != '\0'; });
}

bool same_settings(const Rule& a, const Rule& b) {
  return a.statistics_hash == b.statistics_hash && a.mask_hash == b.mask_hash &&
         std::all_of(rule_settings().begin(), rule_settings().end(), [&](const RuleSetting& word) {
           return !word.has_user_form() || word.given(a) == word.given(b);
         });
}

}  // namespace twofour
