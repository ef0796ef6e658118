#pragma once
#include <array>
#include <concepts>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace twofour {

/// Joins names to a text for messages: "a, b or c".
template <class Names>
std::string either(const Names& names) {
  std::string text;
  for (size_t i = 0; i < std::size(names); ++i) {
    text += i == 0 ? "" : i + 1 == std::size(names) ? " or " : ", ";
    text += names[i];
  }
  return text;
}

/// A word that users write, and the value that it stands for.
template <class T>
struct NamedValue {
  std::string_view word;
  T value;
};
/// The words for the values of a type. The default is the first. values.h defines the words for each type.
template <class T>
inline constexpr std::array<NamedValue<T>, 0> kNamedValues = {};

template <class T>
std::vector<std::string_view> value_names() {
  std::vector<std::string_view> words;
  for (const NamedValue<T>& one : kNamedValues<T>) words.push_back(one.word);
  return words;
}

/// The value that a word stands for. Empty for an unknown word.
template <class T>
std::optional<T> find_value(std::string_view word) {
  for (const NamedValue<T>& one : kNamedValues<T>) {
    if (one.word == word) return one.value;
  }
  return std::nullopt;
}

template <class T>
std::string_view word_of(const T& value) {
  for (const NamedValue<T>& one : kNamedValues<T>) {
    if (one.value == value) return one.word;
  }
  return "";
}

/// Throws Error with the message "expected EXPECTED, found 'FOUND'".
[[noreturn]] void refuse_value(const std::string& expected, std::string_view found);

/// The value of a setting, if it is given. If it is not given, the rule's method chooses the value.
template <class T>
class Chosen {
 public:
  Chosen() = default;
  Chosen(T value) : value_(value) {}  // NOLINT: a value stands for itself
  /// Takes the value that a word stands for. The word "" gives no value. Throws Error on unknown words.
  template <std::convertible_to<std::string_view> Word>
  Chosen(const Word& text) {  // NOLINT: a word stands for its value
    const std::string_view word = text;
    if (word.empty()) return;
    value_ = find_value<T>(word);
    if (!value_) refuse_value(either(value_names<T>()), word);
  }

  bool empty() const { return !value_; }
  const std::optional<T>& value() const { return value_; }
  const T& operator*() const { return *value_; }
  /// The value, or the default, which is the first value of its type.
  T or_default() const { return value_.value_or(kNamedValues<T>[0].value); }
  /// The word of the value. Empty if there is none.
  std::string_view text() const { return value_ ? word_of(*value_) : std::string_view(); }
  friend bool operator==(const Chosen&, const Chosen&) = default;

 private:
  std::optional<T> value_;
};

}  // namespace twofour
