#include "lib/source/tokenizer/field.h"

#include <fmt/format.h>

#include <algorithm>

#include "formats/error.h"
#include "lib/source/tokenizer/unicode.h"

namespace twofour {

void Field::refuse(std::string_view expected) const {
  const std::string found = value_->is_structured() ? std::string(value_->type_name())
                            : value_->is_string()   ? json_quote_short(value_->get_ref<const std::string&>())
                                                    : json_line(*value_);
  throw Error(fmt::format("{}: expected {}, found {}", where_, expected, found));
}

Field Field::at(std::string_view key) const {
  static const Json nothing;
  if (!value_->is_object()) refuse("an object");
  const auto found = value_->find(key);
  const std::string way =
      where_.ends_with(':') ? fmt::format("{} {}", where_, key) : fmt::format("{}.{}", where_, key);
  return {way, found == value_->end() ? nothing : *found};
}

std::vector<Field> Field::elements() const {
  std::vector<Field> all;
  if (is_null()) return all;
  if (!value_->is_array()) refuse("an array");
  for (const Json& element : *value_) all.emplace_back(fmt::format("{}[{}]", where_, all.size()), element);
  return all;
}

const std::string& Field::text() const {
  if (!value_->is_string()) refuse("a string");
  return value_->get_ref<const std::string&>();
}

bool Field::boolean() const {
  if (!value_->is_boolean()) refuse("true or false");
  return value_->get<bool>();
}

size_t Field::whole(size_t most) const {
  if (!value_->is_number_unsigned() || value_->get<uint64_t>() > most)
    refuse(fmt::format("a whole number up to {}", most));
  return value_->get<size_t>();
}

char32_t Field::character() const {
  size_t at = 0;
  const std::string& one = text();
  const char32_t c = one.empty() ? 0 : next_character(one, at);
  if (one.empty() || at != one.size()) refuse("one character");
  return c;
}

size_t Field::choice(const std::vector<std::string_view>& words) const {
  const auto found = value_->is_string() ? std::find(words.begin(), words.end(), text()) : words.end();
  if (found == words.end())
    refuse(words.size() == 1 ? words[0] : fmt::format("one of {}", fmt::join(words, ", ")));
  return static_cast<size_t>(found - words.begin());
}

}  // namespace twofour
