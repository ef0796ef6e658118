#include "formats/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace twofour {

Json Json::of_type(Type type) {
  Json json;
  if (type == Type::kArray) json.array_ = new Array;
  if (type == Type::kObject) json.object_ = new Object;
  json.type_ = type;
  return json;
}

Json::Json(std::string text) : type_(Type::kString), string_(new std::string(std::move(text))) {}

Json::Json(std::initializer_list<JsonItem> items) {
  const bool is_object = std::all_of(items.begin(), items.end(), [](const JsonItem& item) {
    return item.value().is_array() && item.value().size() == 2 && item.value()[size_t{0}].is_string();
  });
  *this = is_object ? object(items) : array(items);
}

Json::Json(const Json& other) : type_(other.type_), unsigned_(other.unsigned_) {
  switch (type_) {
    case Type::kRaw:
    case Type::kString:
      string_ = new std::string(*other.string_);
      break;
    case Type::kArray:
      array_ = new Array(*other.array_);
      break;
    case Type::kObject:
      object_ = new Object(*other.object_);
      break;
    default:
      break;
  }
}

void Json::destroy() noexcept {
  switch (type_) {
    case Type::kArray:
      delete array_;
      break;
    case Type::kObject:
      delete object_;
      break;
    default:
      delete string_;
      break;
  }
}

Json Json::array(std::initializer_list<JsonItem> items) {
  Json json = array();
  json.array_->reserve(items.size());
  for (const JsonItem& item : items) json.array_->push_back(item.take());
  return json;
}

Json Json::object(std::initializer_list<JsonItem> items) {
  Json json = object();
  json.object_->reserve(items.size());
  for (const JsonItem& item : items) {
    const Json& pair = item.value();
    if (!pair.is_array() || pair.size() != 2 || !pair[size_t{0}].is_string()) {
      throw exception("expected pairs of a key and a value");
    }
    Array taken = std::move(*item.take().array_);
    if (!json.contains(*taken[0].string_)) {
      json.object_->emplace_back(std::move(*taken[0].string_), std::move(taken[1]));
    }
  }
  return json;
}

Json Json::raw_number(std::string text) {
  Json json(std::move(text));
  json.type_ = Type::kRaw;
  return json;
}

const char* Json::type_name() const {
  constexpr const char* kNames[] = {"null",   "boolean", "number", "number", "number",
                                    "number", "string",  "array",  "object"};
  return kNames[static_cast<size_t>(type_)];
}

void Json::refuse(const char* expected) const {
  throw exception(fmt::format("expected {}, found {}", expected, type_name()));
}

bool Json::as_boolean() const {
  if (!is_boolean()) refuse("a boolean");
  return boolean_;
}

int64_t Json::as_signed() const {
  if (is_number_integer()) return signed_;
  if (!is_number_float() || !(float_ >= -0x1p63 && float_ < 0x1p63)) refuse("an integer");
  return static_cast<int64_t>(float_);
}

uint64_t Json::as_unsigned() const {
  if (is_number_integer()) return unsigned_;
  if (!is_number_float() || !(float_ > -1 && float_ < 0x1p64)) refuse("an integer");
  return static_cast<uint64_t>(float_);
}

double Json::as_float() const {
  if (type_ == Type::kSigned) return static_cast<double>(signed_);
  if (type_ == Type::kUnsigned) return static_cast<double>(unsigned_);
  if (!is_number_float()) refuse("a number");
  return float_;
}

const std::string& Json::as_string() const {
  if (!is_string()) refuse("a string");
  return *string_;
}

const Json::Array& Json::as_array() const {
  if (!is_array()) refuse("an array");
  return *array_;
}

bool Json::equals(const Json& other) const {
  if (is_number() && other.is_number()) {
    if (is_number_float() || other.is_number_float()) return as_float() == other.as_float();
    const bool same_sign = type_ == other.type_ || (signed_ >= 0 && other.signed_ >= 0);
    return same_sign && signed_ == other.signed_;
  }
  if (type_ != other.type_) return false;
  switch (type_) {
    case Type::kBoolean:
      return boolean_ == other.boolean_;
    case Type::kRaw:
    case Type::kString:
      return *string_ == *other.string_;
    case Type::kArray:
      return *array_ == *other.array_;
    case Type::kObject:
      return *object_ == *other.object_;
    default:
      return true;  // both are null; numbers are compared above
  }
}

const Json::Member* Json::look_up(std::string_view key) const {
  if (!is_object()) refuse("an object");
  for (const Member& m : *object_) {
    if (m.first == key) return &m;
  }
  return nullptr;
}

Json& Json::operator[](std::string_view key) {
  if (is_null()) *this = object();
  if (const Member* found = look_up(key)) return const_cast<Json&>(found->second);
  return object_->emplace_back(std::string(key), Json()).second;
}

const Json& Json::at(std::string_view key) const {
  const Member* found = look_up(key);
  if (found == nullptr) throw exception(fmt::format("expected a key {}, found none", json_quote_short(key)));
  return found->second;
}

const Json& Json::at(size_t index) const {
  const Array& items = as_array();
  if (index >= items.size()) {
    throw exception(fmt::format("expected more than {} elements, found {}", index, items.size()));
  }
  return items[index];
}

Json::const_iterator Json::find(std::string_view key) const {
  const Member* found = is_object() ? look_up(key) : nullptr;
  return found != nullptr ? const_iterator(nullptr, found) : end();
}

Json::iterator Json::find(std::string_view key) {
  const Member* found = is_object() ? look_up(key) : nullptr;
  return found != nullptr ? iterator(nullptr, const_cast<Member*>(found)) : end();
}

Json::iterator Json::begin() {
  if (is_object()) return {nullptr, object_->data()};
  return {is_array() ? array_->data() : this, nullptr};
}

Json::iterator Json::end() {
  if (is_object()) return {nullptr, object_->data() + object_->size()};
  return {is_array() ? array_->data() + array_->size() : this + !is_null(), nullptr};
}

Json::const_iterator Json::begin() const {
  if (is_object()) return {nullptr, object_->data()};
  return {is_array() ? array_->data() : this, nullptr};
}

Json::const_iterator Json::end() const {
  if (is_object()) return {nullptr, object_->data() + object_->size()};
  return {is_array() ? array_->data() + array_->size() : this + !is_null(), nullptr};
}

size_t Json::size() const {
  if (is_null()) return 0;
  return is_array() ? array_->size() : is_object() ? object_->size() : 1;
}

void Json::push_back(Json value) {
  if (is_null()) *this = array();
  as_array();
  array_->push_back(std::move(value));
}

size_t Json::erase(std::string_view key) {
  if (!is_object()) refuse("an object");
  return std::erase_if(*object_, [&](const Member& m) { return m.first == key; });
}

void Json::update(const Json& other) {
  for (const auto& [key, value] : other.items()) (*this)[key] = value;
}

const Json::Object& Json::items() const {
  static const Object none;
  if (is_null()) return none;
  if (!is_object()) refuse("an object");
  return *object_;
}

template <class T>
T whole_number(const Json& json) {
  if (json.is_number_unsigned()) {
    if (const auto n = json.get<uint64_t>(); std::in_range<T>(n)) return static_cast<T>(n);
  } else if (json.is_number_integer()) {
    if (const auto n = json.get<int64_t>(); std::in_range<T>(n)) return static_cast<T>(n);
  }
  throw Json::exception(fmt::format("expected a whole number of {} bits, found {}", 8 * sizeof(T),
                                    json.is_number() ? "another number" : json.type_name()));
}
template int whole_number(const Json&);
template int64_t whole_number(const Json&);
template uint32_t whole_number(const Json&);
template uint64_t whole_number(const Json&);

}  // namespace twofour
