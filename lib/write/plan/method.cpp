#include "lib/write/plan/method.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "formats/error.h"

namespace twofour {

const MethodRow* find_method(std::string_view name) {
  const auto& all = methods();
  const auto at = std::find_if(all.begin(), all.end(), [&](const MethodRow& m) { return m.name == name; });
  return at == all.end() ? nullptr : &*at;
}

namespace {

const MethodRow& row_of(const Rule& rule) {
  if (const MethodRow* row = find_method(rule.to)) return *row;
  std::vector<std::string_view> names;
  for (const MethodRow& m : methods()) names.push_back(m.name);
  throw Error(fmt::format("{}: expected one of {}, found '{}'", rule.name(keys::kTo), fmt::join(names, ", "),
                          rule.to));
}

}  // namespace

void check_taken(const Rule& rule, const RuleSetting& word, std::string_view value) {
  const auto takes = [&](const MethodRow& row) { return (row.kind & word.asked.methods) != 0; };
  if (word.asked.methods == kEveryMethod || takes(row_of(rule))) return;
  std::vector<std::string_view> taking;
  for (const MethodRow& m : methods()) {
    if (takes(m)) taking.push_back(m.name);
  }
  throw Error(fmt::format("{}: expected with {} only, found with {}",
                          word.asked.is_named_with_value ? rule.name(word.key, value) : rule.name(word.key),
                          rule.name(keys::kTo, either(taking)), rule.name(keys::kTo, rule.to)));
}

std::unique_ptr<Method> make_method(Rule& rule) {
  const MethodRow& row = row_of(rule);
  for (const RuleSetting& word : rule_settings()) {
    const std::string value = word.has_user_form() ? word.given(rule) : "";
    if (!value.empty()) check_taken(rule, word, value);
  }
  return row.make(rule);
}

}  // namespace twofour
