#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/json.h"

namespace twofour {

/// A value in a tokenizer.json, with its path for messages: "DIR/tokenizer.json: model.vocab".
class Field {
 public:
  Field(std::string where, const Json& value) : where_(std::move(where)), value_(&value) {}

  const std::string& where() const { return where_; }
  const Json& json() const { return *value_; }
  bool is_null() const { return value_->is_null(); }

  /// Returns a member of this object. Null if it is absent. Throws Error if this value is not an object.
  Field at(std::string_view key) const;
  /// Returns the elements of this array. Empty if the value is null.
  std::vector<Field> elements() const;
  /// The following functions throw Error if the value has a different type.
  const std::string& text() const;
  bool boolean() const;
  bool boolean(bool if_absent) const { return is_null() ? if_absent : boolean(); }
  /// Returns a whole number from 0 to `most`.
  size_t whole(size_t most) const;
  /// Returns the only character of a text.
  char32_t character() const;
  /// Returns the position of the text in `words`.
  size_t choice(const std::vector<std::string_view>& words) const;

  [[noreturn]] void refuse(std::string_view expected) const;

 private:
  std::string where_;
  const Json* value_;
};

/// A row of a table of types. It has a value of an object's `type`, and the function that makes the part of
/// the tokenizer.
template <class T>
struct PartType {
  std::string_view name;
  T (*make)(const Field& field);
};

/// Returns `steps`, which were read from `field`. Throws Error if there are more than `most`.
template <class Steps>
Steps at_most(const Field& field, Steps steps, size_t most) {
  if (steps.size() > most) field.refuse(std::to_string(most) + " steps at most");
  return steps;
}

/// Makes the part that the object `field` describes. Throws Error, which lists the names in the table, on any
/// other type.
template <class T, size_t N>
T make_part(const Field& field, const PartType<T> (&types)[N]) {
  std::vector<std::string_view> names;
  for (const PartType<T>& type : types) names.push_back(type.name);
  return types[field.at("type").choice(names)].make(field);
}

}  // namespace twofour
