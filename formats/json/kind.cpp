#include "formats/json/kind.h"

#include <algorithm>

#include "formats/json/access.h"

namespace twofour {

bool is_of_kind(const Json& value, JsonKind kind) {
  if (value.is_null()) return true;
  const auto is_text = [](const Json& item) { return item.is_string(); };
  switch (kind) {
    case JsonKind::kFlag:
      return value.is_boolean();
    case JsonKind::kInteger:
      return value.is_number_integer();
    case JsonKind::kNumber:
      return value.is_number();
    case JsonKind::kIntegerOrPair:
      return value.is_number_integer() || pair_of(value).has_value();
    case JsonKind::kText:
      return value.is_string();
    case JsonKind::kFlagOrText:
      return value.is_boolean() || value.is_string();
    case JsonKind::kSizes:
      return value.is_string() || pair_of(value).has_value();
    case JsonKind::kTexts:
      return value.is_array() && std::all_of(value.begin(), value.end(), is_text);
    case JsonKind::kObject:
      return value.is_object();
  }
  return false;
}

const char* name_of_kind(JsonKind kind) {
  switch (kind) {
    case JsonKind::kFlag:
      return "true or false";
    case JsonKind::kInteger:
      return "a whole number";
    case JsonKind::kNumber:
      return "a number";
    case JsonKind::kIntegerOrPair:
      return "a whole number or two";
    case JsonKind::kText:
      return "a string";
    case JsonKind::kFlagOrText:
      return "true, false or a string";
    case JsonKind::kSizes:
      return "two whole numbers";
    case JsonKind::kTexts:
      return "a list of strings";
    case JsonKind::kObject:
      return "an object";
  }
  return "";
}

}  // namespace twofour
