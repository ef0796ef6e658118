// This file contains all uses of nlohmann-json: it reads the events of a text, and formats the digits of a
// double.
#include <fmt/format.h>

#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "formats/error.h"
#include "formats/json.h"
#include "formats/json_events.h"

namespace twofour {
namespace {

/// Refuses zero bytes, which the lexer takes for the end of the text, and long tokens. The lexer stores all
/// characters since the last string or number began.
class TextGuard {
 public:
  explicit TextGuard(std::string_view where) : where_(where) {}
  /// Checks the next piece of the text.
  void check(std::string_view piece) {
    if (const size_t zero = piece.find('\0'); zero != piece.npos)
      throw Error(fmt::format("{}: not JSON: error at byte {}", where_, position_ + zero + 1));
    for (size_t i = 0; i < piece.size(); ++i) {
      const char c = piece[i];
      if (in_string_) {
        in_string_ = escaped_ || c != '"';
        escaped_ = !escaped_ && c == '\\';
        continue;
      }
      const bool is_number = c == '-' || (c >= '0' && c <= '9');
      in_string_ = c == '"';
      if (in_string_ || (is_number && !in_number_)) began_ = checked(position_ + i);
      in_number_ = is_number || (in_number_ && (c == '.' || c == 'e' || c == 'E' || c == '+'));
    }
    position_ = checked(position_ + piece.size());
  }

 private:
  /// Returns `position`, a position where the last token may end. Throws Error if the token is too long.
  uint64_t checked(uint64_t position) const {
    constexpr uint64_t kMaxBytes = 16u << 20;
    if (position <= began_ + kMaxBytes + 1) return position;
    throw Error(fmt::format("{}: expected at most {} bytes in a string or number or between two, found more",
                            where_, kMaxBytes));
  }

  std::string_view where_;
  uint64_t position_ = 0, began_ = 0;
  bool in_string_ = false, escaped_ = false, in_number_ = false;
};

/// The input iterator of nlohmann-json. It checks each piece with the guard first.
class Characters {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = char;

  /// Constructs the end of the text.
  Characters() = default;
  Characters(TextGuard& guard, const JsonPieces& next) : guard_(&guard), next_(&next) { fill(); }
  char operator*() const { return *at_; }
  Characters& operator++() {
    if (++at_ == end_) fill();
    return *this;
  }
  /// Iterators are only ever compared with the end of the text.
  bool operator==(const Characters&) const { return at_ == end_; }

 private:
  void fill() {
    const std::string_view piece = (*next_)();
    guard_->check(piece);
    at_ = piece.data();
    end_ = at_ + piece.size();
  }

  TextGuard* guard_ = nullptr;
  const JsonPieces* next_ = nullptr;
  const char *at_ = nullptr, *end_ = nullptr;
};

/// Passes the events of nlohmann-json to JsonEvents.
class Handler final : public nlohmann::json_sax<nlohmann::json> {
 public:
  Handler(std::string_view where, JsonEvents& events) : where_(where), events_(events) {}
  bool null() override { return events_.null(), true; }
  bool boolean(bool value) override { return events_.boolean(value), true; }
  bool number_integer(number_integer_t value) override { return events_.signed_number(value), true; }
  bool number_unsigned(number_unsigned_t value) override { return events_.unsigned_number(value), true; }
  bool number_float(number_float_t value, const string_t& text) override {
    return events_.float_number(value, text), true;
  }
  bool string(string_t& text) override { return events_.string(text), true; }
  bool binary(binary_t&) override { return false; }  // JSON has no binary values
  bool start_object(std::size_t) override { return events_.begin_object(), true; }
  bool key(string_t& text) override { return events_.key(text), true; }
  bool end_object() override { return events_.end_object(), true; }
  bool start_array(std::size_t) override { return events_.begin_array(), true; }
  bool end_array() override { return events_.end_array(), true; }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception& e) override {
    constexpr int kOutOfRange = 406;
    if (e.id == kOutOfRange) throw Error(fmt::format("{}: not JSON: a number is too large", where_));
    throw Error(fmt::format("{}: not JSON: error at byte {}", where_, position));
  }

 private:
  std::string_view where_;
  JsonEvents& events_;
};

}  // namespace

void JsonEvents::signed_number(int64_t value) { unexpected(fmt::format("{}", value)); }
void JsonEvents::unsigned_number(uint64_t value) { unexpected(fmt::format("{}", value)); }
void JsonEvents::float_number(double, std::string_view text) { unexpected(std::string(text.substr(0, 64))); }
void JsonEvents::string(std::string& text) { unexpected(json_quote_short(text)); }

void check_json_text(std::string_view where, std::string_view text) { TextGuard(where).check(text); }

void read_json_pieces(std::string_view where, const JsonPieces& next, JsonEvents& events) {
  TextGuard guard(where);
  Handler handler(where, events);
  nlohmann::json::sax_parse(Characters(guard, next), Characters(), &handler);
}

void read_json(std::string_view where, std::string_view text, JsonEvents& events) {
  read_json_pieces(
      where, [&] { return std::exchange(text, {}); }, events);
}

std::string json_float(double value) {
  std::array<char, 64> digits;
  const char* end = nlohmann::detail::to_chars(digits.data(), digits.data() + digits.size(), value);
  return std::string(digits.data(), static_cast<size_t>(end - digits.data()));
}

}  // namespace twofour
