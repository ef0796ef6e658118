#pragma once
#include <compare>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace twofour {

class Json;
class JsonItem;

template <class T>
concept JsonScalar = std::is_arithmetic_v<T>;
/// A vector, set, span or map that is neither text nor a path.
template <class C>
concept JsonItems = !std::same_as<C, Json> && !std::same_as<typename C::value_type, C> &&
                    !std::same_as<typename C::value_type, char> && requires(const C& items) {
  items.begin() != items.end();
};

/// A JSON value of 16 bytes. Objects preserve the order of their keys, so a rewritten config reads like its
/// source. Keys are looked up by a linear search. A braced list becomes an object if every element is a pair
/// that begins with a string; otherwise it becomes an array. Assigning to a key or an element of a null turns
/// the null into an object or array. Access as another type throws Json::exception.
class Json {
 public:
  struct exception : std::runtime_error {
    using std::runtime_error::runtime_error;
  };
  /// kRaw holds NaN, Infinity, -Infinity, or an integer of more than 64 bits, as text.
  enum class Type : uint8_t { kNull, kBoolean, kSigned, kUnsigned, kFloat, kRaw, kString, kArray, kObject };
  using Array = std::vector<Json>;
  using Member = std::pair<std::string, Json>;
  using Object = std::vector<Member>;
  /// dump() writes a raw number as a string with this prefix, so that the text is valid JSON. The prefix is a
  /// private-use character followed by our name.
  static constexpr std::string_view kRawMark = "\xEF\xA3\xBFtwofour:";

  /// Iterates over the elements of an array, the values of an object, or a single value of another type.
  template <class J>
  class Iterator {
   public:
    using iterator_category = std::forward_iterator_tag;
    using value_type = Json;
    using difference_type = std::ptrdiff_t;
    using pointer = J*;
    using reference = J&;
    using M = std::conditional_t<std::is_const_v<J>, const Member, Member>;

    Iterator() = default;
    Iterator(J* element, M* member) : element_(element), member_(member) {}
    J& operator*() const { return member_ != nullptr ? member_->second : *element_; }
    J* operator->() const { return &**this; }
    Iterator& operator++() {
      member_ != nullptr ? static_cast<void>(++member_) : static_cast<void>(++element_);
      return *this;
    }
    Iterator operator++(int) {
      const Iterator before = *this;
      ++*this;
      return before;
    }
    bool operator==(const Iterator&) const = default;
    /// The key of an object's member.
    const std::string& key() const { return member_->first; }

   private:
    J* element_ = nullptr;
    M* member_ = nullptr;
  };
  using iterator = Iterator<Json>;
  using const_iterator = Iterator<const Json>;
  using value_type = Json;

  Json() noexcept {}
  Json(std::nullptr_t) noexcept {}
  template <JsonScalar T>
  Json(T value) noexcept {
    if constexpr (std::same_as<T, bool>) {
      type_ = Type::kBoolean, boolean_ = value;
    } else if constexpr (std::floating_point<T>) {
      type_ = Type::kFloat, float_ = static_cast<double>(value);
    } else if constexpr (std::signed_integral<T>) {
      type_ = Type::kSigned, signed_ = value;
    } else {
      type_ = Type::kUnsigned, unsigned_ = value;
    }
  }
  Json(const char* text) : Json(std::string(text)) {}
  Json(std::string_view text) : Json(std::string(text)) {}
  Json(std::string text);
  Json(std::initializer_list<JsonItem> items);
  /// Makes an array of the items, or an object from the items of a map.
  template <JsonItems C>
  Json(const C& items) : Json(of_type(Type::kArray)) {
    if constexpr (requires { typename C::mapped_type; }) {
      *this = of_type(Type::kObject);
      for (const auto& [key, value] : items) (*this)[key] = value;
    } else {
      for (const auto& item : items) push_back(item);
    }
  }
  Json(const Json& other);
  Json(Json&& other) noexcept : type_(other.type_), unsigned_(other.unsigned_) { other.type_ = Type::kNull; }
  Json& operator=(Json other) noexcept {
    swap(other);
    return *this;
  }
  ~Json() {
    if (type_ >= Type::kRaw) destroy();
  }
  void swap(Json& other) noexcept {
    std::swap(type_, other.type_);
    std::swap(unsigned_, other.unsigned_);
  }

  static Json array(std::initializer_list<JsonItem> items);
  static Json array() { return of_type(Type::kArray); }
  static Json object(std::initializer_list<JsonItem> items);
  static Json object() { return of_type(Type::kObject); }
  /// Makes a number that no other type can hold; see kRaw.
  static Json raw_number(std::string text);
  /// Parses one document that json_line() or dump() wrote. Marked strings become raw numbers again. Objects
  /// of any size preserve their order. At most 256 levels may be nested. Throws Json::exception if the text
  /// is not JSON.
  static Json parse(std::string_view text);

  Type type() const { return type_; }
  /// The name of the type: null, boolean, number, string, array or object.
  const char* type_name() const;
  bool is_null() const { return type_ == Type::kNull; }
  bool is_boolean() const { return type_ == Type::kBoolean; }
  /// True for integers of at most 64 bits.
  bool is_number_integer() const { return type_ == Type::kSigned || type_ == Type::kUnsigned; }
  bool is_number_unsigned() const { return type_ == Type::kUnsigned; }
  bool is_number_float() const { return type_ == Type::kFloat; }
  /// True for all numbers but kRaw.
  bool is_number() const { return is_number_integer() || is_number_float(); }
  bool is_string() const { return type_ == Type::kString; }
  bool is_array() const { return type_ == Type::kArray; }
  bool is_object() const { return type_ == Type::kObject; }
  bool is_structured() const { return is_array() || is_object(); }

  /// The value as a bool, a number, a string, a container of these types, or Json. Numbers are converted as
  /// in C++; a number that does not fit T is refused. Use whole_number() for numbers that must not be
  /// converted.
  template <class T>
  T get() const {
    if constexpr (std::same_as<T, Json>) {
      return *this;
    } else if constexpr (std::same_as<T, bool>) {
      return as_boolean();
    } else if constexpr (std::floating_point<T>) {
      return static_cast<T>(as_float());
    } else if constexpr (std::unsigned_integral<T>) {
      return static_cast<T>(as_unsigned());
    } else if constexpr (std::signed_integral<T>) {
      return static_cast<T>(as_signed());
    } else if constexpr (std::same_as<T, std::string>) {
      return as_string();
    } else {
      T items;
      for (const Json& item : as_array()) items.insert(items.end(), item.get<typename T::value_type>());
      return items;
    }
  }
  template <std::same_as<const std::string&> T>
  T get_ref() const {
    return as_string();
  }

  /// The value under a key. Adds the key with null if it is missing.
  Json& operator[](std::string_view key);
  /// Same as at(), since a const value cannot add a key.
  const Json& operator[](std::string_view key) const { return at(key); }
  Json& operator[](size_t index) { return at(index); }
  const Json& operator[](size_t index) const { return at(index); }
  Json& at(std::string_view key) { return const_cast<Json&>(std::as_const(*this).at(key)); }
  const Json& at(std::string_view key) const;
  Json& at(size_t index) { return const_cast<Json&>(std::as_const(*this).at(index)); }
  const Json& at(size_t index) const;
  Json& back() { return at(size() - 1); }
  const Json& back() const { return at(size() - 1); }
  /// The value under `key`, or `fallback` if the object lacks the key. Throws if this value is not an object.
  template <class T>
  T value(std::string_view key, const T& fallback) const {
    const Member* found = look_up(key);
    return found != nullptr ? found->second.template get<T>() : fallback;
  }
  std::string value(std::string_view key, const char* fallback) const {
    return value(key, std::string(fallback));
  }
  /// The member with a key. Returns end() if this value is not an object or lacks the key.
  iterator find(std::string_view key);
  const_iterator find(std::string_view key) const;
  bool contains(std::string_view key) const { return find(key) != end(); }
  /// The number of members or elements; 0 for null, 1 for every other type.
  size_t size() const;
  bool empty() const { return size() == 0; }

  void push_back(Json value);
  /// Removes a key. Returns the number of removed keys. Throws if this value is not an object.
  size_t erase(std::string_view key);
  /// Sets each member of the object `other` in this object.
  void update(const Json& other);

  iterator begin();
  iterator end();
  const_iterator begin() const;
  const_iterator end() const;
  /// The members of an object, as in `for (const auto& [key, value] : json.items())`. A null has no members.
  Object& items() { return const_cast<Object&>(std::as_const(*this).items()); }
  const Object& items() const;

  /// The value as text. By default, the text has no blanks or line ends; otherwise each level is indented by
  /// `indent` spaces. Raw numbers are written as marked strings, so that every reader accepts the text.
  /// Invalid UTF-8 is replaced. Floats that are not finite are written as null.
  std::string dump(int indent = -1) const;

  /// Two objects are equal only if their members are in the same order. Numbers are compared by value.
  friend bool operator==(const Json& a, const Json& b) { return a.equals(b); }
  /// Compares two numbers as doubles. Throws on other types.
  friend std::partial_ordering operator<=>(const Json& a, const Json& b) {
    return a.as_float() <=> b.as_float();
  }

 private:
  static Json of_type(Type type);
  void destroy() noexcept;
  bool equals(const Json& other) const;
  [[noreturn]] void refuse(const char* expected) const;
  const Member* look_up(std::string_view key) const;
  bool as_boolean() const;
  int64_t as_signed() const;
  uint64_t as_unsigned() const;
  double as_float() const;
  const std::string& as_string() const;
  const Array& as_array() const;

  Type type_ = Type::kNull;
  union {
    bool boolean_;
    int64_t signed_;
    uint64_t unsigned_ = 0;
    double float_;
    std::string* string_;  ///< the text of kString and kRaw
    Array* array_;
    Object* object_;
  };

  friend class JsonWriter;
};

/// A type that Json can be constructed from.
template <class T>
concept JsonValue = !std::same_as<std::remove_cvref_t<T>, JsonItem> && std::constructible_from<Json, T>;

/// An item of a braced list. Its value can be moved from, unlike an item of an initializer_list.
class JsonItem {
 public:
  JsonItem() = default;
  template <JsonValue T>
  JsonItem(T&& value) : value_(std::forward<T>(value)) {}
  JsonItem(std::initializer_list<JsonItem> items) : value_(items) {}
  const Json& value() const { return value_; }
  Json take() const { return std::move(value_); }

 private:
  mutable Json value_;
};

/// Parses one document. Throws Error naming `where` on syntax errors, on text that is not UTF-8, on more than
/// 64 levels of nesting, and on more than 1,000,000 values. If a key is repeated, its last value counts, as
/// in Python's loader. NaN, Infinity and -Infinity become raw numbers: Python's loader accepts them and some
/// configs have them. Integers of more than 64 bits become raw numbers, too. Keys are sorted if the text is
/// longer than 256 KiB.
Json parse_json(std::string_view where, std::string_view text);

/// Formats a document as text, with two spaces for each level and a newline at the end. Raw numbers are
/// written unchanged.
std::string format_json(const Json& json);
/// Formats a document without blanks and line ends, as dump() does. Journals, records and messages use it.
std::string json_line(const Json& json);

/// Returns `json` as an integer. T is int, int64_t, uint32_t or uint64_t. Throws Json::exception if the value
/// is not an integer or does not fit T.
template <class T>
T whole_number(const Json& json);

/// Returns the number of bytes of the first character of `text`. If the text does not begin with valid UTF-8,
/// returns minus the number of bytes to skip to where the next character may begin.
int utf8_bytes(std::string_view text);

/// Returns `text` in JSON quotes.
std::string json_quote(std::string_view text);

/// Returns `text` in JSON quotes for a message. A text of more than 256 bytes is cut and its length is given,
/// so that a hostile file cannot make the message long.
std::string json_quote_short(std::string_view text);

}  // namespace twofour
