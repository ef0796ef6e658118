#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/json.h"

namespace twofour {

/// A value of a tokenizer.json with its path, which messages name: "DIR/tokenizer.json: model.vocab".
class Field {
 public:
  Field(std::string where, const Json& value) : where_(std::move(where)), value_(&value) {}

  const std::string& where() const { return where_; }
  const Json& json() const { return *value_; }
  bool is_null() const { return value_->is_null(); }

  /// A member of an object; null if it is absent. Throws Error if this is no object.
  Field at(std::string_view key) const;
  /// The elements of an array; none for null.
  std::vector<Field> elements() const;
  /// These throw Error on a value of another type.
  const std::string& text() const;
  bool boolean() const;
  bool boolean(bool if_absent) const { return is_null() ? if_absent : boolean(); }
  /// A whole number from 0 to `most`.
  size_t whole(size_t most) const;
  /// A text of one character.
  char32_t character() const;
  /// The position of the text in `words`.
  size_t choice(const std::vector<std::string_view>& words) const;

  [[noreturn]] void refuse(std::string_view expected) const;

 private:
  std::string where_;
  const Json* value_;
};

/// A row of a table of parts: a value of an object's `type`, and the function that creates the part.
template <class T>
struct PartType {
  std::string_view name;
  T (*make)(const Field& field);
};

/// Returns the steps that were read from `field`. Throws Error if there are more than `most`.
template <class Steps>
Steps at_most(const Field& field, Steps steps, size_t most) {
  if (steps.size() > most) field.refuse(std::to_string(most) + " steps at most");
  return steps;
}

/// The part that the object `field` describes. Throws Error, with the names of the table, on other types.
template <class T, size_t N>
T make_part(const Field& field, const PartType<T> (&types)[N]) {
  std::vector<std::string_view> names;
  for (const PartType<T>& type : types) names.push_back(type.name);
  return types[field.at("type").choice(names)].make(field);
}

}  // namespace twofour
