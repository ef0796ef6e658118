#pragma once
#include <fmt/format.h>

#include <bit>
#include <charconv>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "formats/error.h"
#include "lib/words/rule_words.h"

/// Kinds of rows of the table of words.

namespace twofour {

/// Names and float32 bits, and what they mean.
inline constexpr JsonWord<FixedGlobalScales> kScaleWords[] = {
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
RuleWord record_word(const char* key, bool is_required = false) {
  return {key, [](const Rule& r) { return (r.*kField).empty() ? Json() : Json(r.*kField); },
          [](const JsonPlace&, const Json& json, Rule& r) { r.*kField = json.get<std::string>(); },
          is_required};
}

template <auto kField>
RuleWord pattern_word(const char* key) {
  return {key,
          [](const Rule& r) {
            Json texts = Json::array();
            for (const NamePattern& p : r.selection.*kField) texts.push_back(p.text());
            return texts;
          },
          [](const JsonPlace&, const Json& json, Rule& r) {
            r.selection.*kField = parse_patterns(json.get<std::vector<std::string>>());
          },
          true};
}

template <auto kField>
RuleWord scale_word(const char* key) {
  return {
      key,
      [](const Rule& r) { return (r.*kField).scales.empty() ? Json() : write_words(kScaleWords, r.*kField); },
      [](const JsonPlace& place, const Json& json, Rule& r) {
        read_words(kScaleWords, place, json, r.*kField);
      }};
}

/// The values of a type, for every command.
template <class T>
std::vector<std::string> all_words(unsigned) {
  const auto words = value_words<T>();
  return {words.begin(), words.end()};
}

/// A field of a rule by the word of one of its values; false: it has no such word.
template <class T>
bool take_value(const Json& json, T& field) {
  const std::optional<T> value = find_value<T>(json.get<std::string>());
  if (value) field = *value;
  return value.has_value();
}
template <class T>
bool take_value(const Json& json, Chosen<T>& field) {
  const std::optional<T> value = find_value<T>(json.get<std::string>());
  if (value) field = *value;
  return value.has_value();
}

template <auto kField>
auto& field_of(Rule& rule) {
  return rule.*kField;
}

/// A word of a field with a type of its own: `kAt` gives a rule's Chosen<T>.
template <class T, Chosen<T>& (*kAt)(Rule&)>
RuleWord choice_at(const char* key, AskedWord asked) {
  if (asked.values == nullptr) asked.values = all_words<T>;
  return {key,
          [](const Rule& r) {
            const std::string_view text = kAt(const_cast<Rule&>(r)).text();
            return text.empty() ? Json() : Json(text);
          },
          [](const JsonPlace& place, const Json& json, Rule& r) {
            if (!take_value(json, kAt(r))) place.refuse(either(value_words<T>()), json);
          },
          false,
          [](const Json& json, Author, Rule& r) { return take_value(json, kAt(r)); },
          [](const Rule& r) { return std::string(kAt(const_cast<Rule&>(r)).text()); },
          std::move(asked)};
}
template <class T>
T value_type(Chosen<T> Rule::*);
template <auto kField>
RuleWord choice_word(const char* key, AskedWord asked) {
  using T = decltype(value_type(kField));
  return choice_at<T, field_of<kField>>(key, std::move(asked));
}

/// A text that nothing here checks; a choice of texts where the row has values.
template <auto kField>
RuleWord asked_text(const char* key, AskedWord asked) {
  RuleWord word = record_word<kField>(key);
  word.take = [](const Json& json, Author, Rule& r) {
    r.*kField = json.get<std::string>();
    return true;
  };
  word.given = [](const Rule& r) { return r.*kField; };
  word.asked = std::move(asked);
  return word;
}

template <auto kField>
RuleWord flag_word(const char* key, AskedWord asked) {
  asked.form = AskedWord::Form::kFlag;
  return {key,
          [](const Rule& r) { return r.*kField ? Json(true) : Json(); },
          [](const JsonPlace&, const Json& json, Rule& r) { r.*kField = json.get<bool>(); },
          false,
          [](const Json& json, Author, Rule& r) {
            r.*kField = json.get<bool>();
            return true;
          },
          [](const Rule& r) { return std::string(r.*kField ? "true" : ""); },
          std::move(asked)};
}

/// A whole number from 0, or the default below it.
template <auto kField>
RuleWord number_word(const char* key, AskedWord asked) {
  asked.form = AskedWord::Form::kNumber;
  return {key,
          [](const Rule& r) { return r.*kField < 0 ? Json() : Json(r.*kField); },
          [](const JsonPlace&, const Json& json, Rule& r) { r.*kField = json.get<int>(); },
          false,
          [](const Json& json, Author, Rule& r) {
            r.*kField = json.get<int>();
            return true;
          },
          [](const Rule& r) { return r.*kField < 0 ? std::string() : fmt::format("{}", r.*kField); },
          std::move(asked)};
}

}  // namespace twofour
