#pragma once
#include <fmt/format.h>

#include <bit>
#include <charconv>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "formats/error.h"
#include "lib/recipe/settings/rule_settings.h"

/// Functions that make rows for the table of settings.

namespace twofour {

/// The keys of fixed global scales in twofour.json: names, float32 bits and whether they divide.
inline constexpr JsonKey<FixedGlobalScales> kScaleKeys[] = {
    {"divides", [](const FixedGlobalScales& s) { return Json(s.divides); },
     [](const JsonPlace&, const Json& json, FixedGlobalScales& s) { s.divides = json.get<bool>(); }, true},
    {"bits",
     [](const FixedGlobalScales& s) {
       Json bits = Json::object();
       for (const auto& [name, value] : s.scales) bits[name] = fmt::format("{:08x}", value);
       return bits;
     },
     [](const JsonPlace& place, const Json& json, FixedGlobalScales& s) {
       for (const auto& [name, value] : json.items()) {
         const auto text = value.get<std::string>();
         uint32_t bits = 0;
         const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), bits, 16);
         const auto scale = std::bit_cast<float>(bits);
         if (error != std::errc() || end != text.data() + text.size() || text.size() != 8 ||
             !std::isfinite(scale) || scale <= 0) {
           throw Error(fmt::format("{}: {}: expected the bits of a positive finite global scale, found {}",
                                   place.where, name, json_quote(text)));
         }
         s.scales.push_back({name, bits});
       }
       s.sort();
     },
     true}};

template <auto kField>
RuleSetting scale_setting(const char* key) {
  return {
      key,
      [](const Rule& r) { return (r.*kField).scales.empty() ? Json() : write_keys(kScaleKeys, r.*kField); },
      [](const JsonPlace& place, const Json& json, Rule& r) {
        read_keys(kScaleKeys, place, json, r.*kField);
        return true;
      }};
}

template <auto kField>
RuleSetting pattern_setting(const char* key) {
  return {.key = key,
          .write =
              [](const Rule& r) {
                Json texts = Json::array();
                for (const NamePattern& p : r.selection.*kField) texts.push_back(p.text());
                return texts;
              },
          .take =
              [](const JsonPlace&, const Json& json, Rule& r) {
                r.selection.*kField = parse_patterns(json.get<std::vector<std::string>>());
                return true;
              },
          .is_required = true};
}

/// The JSON value of a field, which is a text, number or boolean. Null if the field is not set.
inline Json value_json(const std::string& field) { return field.empty() ? Json() : Json(field); }
inline Json value_json(bool field) { return field ? Json(true) : Json(); }
inline Json value_json(int field) { return field < 0 ? Json() : Json(field); }
inline Json value_json(const std::optional<double>& field) { return field ? Json(*field) : Json(); }
inline Json value_json(Fold field) { return word_of(field); }
template <class T>
Json value_json(const Chosen<T>& field) {
  return field.empty() ? Json() : Json(field.text());
}

/// Sets a field to the value that value_json() made `json` from. Returns false if the field has no such
/// value.
template <class T>
bool take_value(const Json& json, T& field) {
  field = json.get<T>();
  return true;
}
/// Takes a share, 0 to 1, as a number or as users write it.
inline bool take_value(const Json& json, std::optional<double>& field) {
  double share = 0;
  if (json.is_string()) {
    const auto text = json.get<std::string>();
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), share);
    if (error != std::errc() || end != text.data() + text.size()) return false;
  } else {
    share = json.get<double>();
  }
  if (!(share >= 0 && share <= 1)) return false;
  field = share;
  return true;
}
inline bool take_value(const Json& json, Fold& field) {
  const auto value = find_value<Fold>(json.get<std::string>());
  field = value.value_or(field);
  return value.has_value();
}
template <class T>
bool take_value(const Json& json, Chosen<T>& field) {
  const auto value = find_value<T>(json.get<std::string>());
  if (value) field = *value;
  return value.has_value();
}

/// The words of all values of a type. They are the same for every command.
template <class T>
std::vector<std::string> all_value_names(unsigned) {
  const auto words = value_names<T>();
  return {words.begin(), words.end()};
}
template <class T>
void describe_form(UserForm& asked, const T&) {
  if (asked.form == UserForm::Form::kNone) return;
  if constexpr (std::is_same_v<T, bool>) asked.form = UserForm::Form::kFlag;
  if constexpr (std::is_same_v<T, int>) asked.form = UserForm::Form::kNumber;
}
template <class T>
void describe_form(UserForm& asked, const Chosen<T>&) {
  if (asked.values == nullptr) asked.values = all_value_names<T>;
}

template <auto kField>
auto& field_of(Rule& rule) {
  return rule.*kField;
}

/// The row of a setting whose value is the field that `kAt` returns. The field's type determines the
/// setting's form.
template <auto kAt>
RuleSetting setting_at(const char* key, UserForm asked) {
  Rule rule;
  describe_form(asked, kAt(rule));
  return {key, [](const Rule& r) { return value_json(kAt(const_cast<Rule&>(r))); },
          [](const JsonPlace&, const Json& json, Rule& r) { return take_value(json, kAt(r)); },
          std::move(asked)};
}
template <auto kField>
RuleSetting user_setting(const char* key, UserForm asked) {
  return setting_at<field_of<kField>>(key, std::move(asked));
}
/// The row of a setting that users cannot give and that only twofour.json has.
template <auto kField>
RuleSetting recorded_setting(const char* key) {
  return user_setting<kField>(key, {.form = UserForm::Form::kNone});
}

}  // namespace twofour
