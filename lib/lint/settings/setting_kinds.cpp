#include "lib/lint/settings/setting_kinds.h"

#include <algorithm>
#include <cmath>

namespace twofour {

using enum SettingKind;

/// The largest number that published models add before the root of a norm is 1e-5, and 6.4e-4 in group norms.
constexpr double kLargestEpsilon = 1e-3;

const char* expected_of(SettingKind kind) {
  switch (kind) {
    case kCount:
      return "a whole number of at least 1";
    case kNumber:
      return "a whole number that is not negative";
    case kNumberOrAll:
      return "a whole number that is not negative, or -1 for all";
    case kPositive:
      return "a number of more than 0";
    case kNotNegative:
      return "a number that is not negative";
    case kAnyNumber:
      return "a number";
    case kEpsilon:
      return "a number of more than 0, at most 1e-3";
    case kShare:
      return "a number of more than 0, at most 1";
    case kShareOrNothing:
      return "a number from 0 to 1";
    case kSwitch:
      return "true or false";
    case kToken:
      return "the number of a token";
    case kTokens:
      return "the number of a token, or a list of them";
    case kTokenOrNone:
      return "the number of a token";
  }
  return "";
}

bool fits(const Json& value, SettingKind kind) {
  if (value.is_null()) return true;
  switch (kind) {
    case kSwitch:
      return value.is_boolean();
    case kCount:
    case kNumber:
    case kToken: {
      const int64_t least = kind == kCount ? 1 : 0;
      return value.is_number_unsigned() ? value.get<uint64_t>() >= static_cast<uint64_t>(least)
                                        : value.is_number_integer() && value.get<int64_t>() >= least;
    }
    case kNumberOrAll:
      return fits(value, kNumber) || value == -1;
    case kTokenOrNone:
      return fits(value, kToken) || value == -1;
    case kTokens:
      return value.is_array()
                 ? !value.empty() &&
                       std::all_of(value.begin(), value.end(),
                                   [](const Json& one) { return !one.is_null() && fits(one, kToken); })
                 : fits(value, kToken);
    default:
      break;
  }
  if (!value.is_number()) return false;
  const auto number = value.get<double>();
  if (!std::isfinite(number)) return false;
  if (kind == kAnyNumber) return true;
  if (kind == kNotNegative || kind == kShareOrNothing)
    return number >= 0 && (kind == kNotNegative || number <= 1);
  if (kind == kEpsilon) return number > 0 && number <= kLargestEpsilon;
  return number > 0 && (kind == kPositive || number <= 1);
}

}  // namespace twofour
