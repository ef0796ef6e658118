#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "formats/error.h"
#include "formats/json.h"
#include "formats/json_events.h"

namespace twofour {
namespace {

constexpr std::string_view kNotFinite[] = {"NaN", "Infinity", "-Infinity"};
/// The number of digits from which an integer may need more than 64 bits.
constexpr size_t kWideDigits = 19;

bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// True if `token` is a JSON integer that needs more than 64 bits. It may have a sign.
bool is_wide_integer(std::string_view token) {
  const bool negative = token.starts_with('-');
  const std::string_view digits = token.substr(negative);
  if (digits.size() < kWideDigits || digits[0] == '0' || !std::all_of(digits.begin(), digits.end(), is_digit))
    return false;
  const std::string_view largest = negative ? "9223372036854775808" : "18446744073709551615";
  return digits.size() != largest.size() ? digits.size() > largest.size() : digits > largest;
}

/// The raw number at the beginning of `text`. Empty if there is none.
std::string_view raw_number_of(std::string_view text) {
  for (const std::string_view token : kNotFinite) {
    if (text.starts_with(token)) return text.substr(0, token.size());
  }
  const std::string_view token = text.substr(0, text.find_first_not_of("0123456789+-.eE"));
  return is_wide_integer(token) ? token : std::string_view();
}

/// Returns `text` with raw numbers replaced by marked strings, which nlohmann-json's lexer accepts. Adds the
/// number of replacements to `count`.
std::string mark_numbers(std::string_view text, size_t& count) {
  std::string out;
  bool in_string = false;
  for (size_t i = 0; i < text.size();) {
    const char c = text[i];
    if (c == '"') in_string = !in_string;
    const bool begins = !in_string && (c == '-' || c == 'N' || c == 'I' || is_digit(c));
    const std::string_view number = begins ? raw_number_of(text.substr(i)) : std::string_view();
    if (!number.empty()) {
      out.append("\"").append(Json::kRawMark).append(number).append("\"");
      i += number.size();
      ++count;
      continue;
    }
    // An escaped quote does not end a string. The rest of a number is skipped.
    size_t take = in_string && c == '\\' ? 2 : 1;
    if (begins)
      take = std::max(take, std::min(text.find_first_not_of("0123456789+-.eE", i), text.size()) - i);
    out += text.substr(i, take);
    i += take;
  }
  return out;
}

bool has_raw_numbers(std::string_view text) {
  if (text.find("NaN") != text.npos || text.find("Infinity") != text.npos) return true;
  size_t digits = 0;
  for (const char c : text) {
    digits = is_digit(c) ? digits + 1 : 0;
    if (digits == kWideDigits) return true;
  }
  return false;
}

/// Merges members with the same key. The last value takes the place of the first.
void unite_keys(Json::Object& members) {
  constexpr size_t kFew = 16;
  bool has_twins = false;
  if (members.size() <= kFew) {
    for (size_t i = 1; i < members.size(); ++i)
      for (size_t j = 0; j < i; ++j) has_twins = has_twins || members[i].first == members[j].first;
  } else {
    std::vector<std::string_view> keys;
    for (const auto& [key, value] : members) keys.push_back(key);
    std::sort(keys.begin(), keys.end());
    has_twins = std::adjacent_find(keys.begin(), keys.end()) != keys.end();
  }
  if (!has_twins) return;
  std::map<std::string, size_t> places;
  size_t kept = 0;
  for (Json::Member& m : members) {
    const auto [place, is_new] = places.try_emplace(m.first, kept);
    if (!is_new) {
      members[place->second].second = std::move(m.second);
    } else {
      if (&members[kept] != &m) members[kept] = std::move(m);
      ++kept;
    }
  }
  members.erase(members.begin() + static_cast<std::ptrdiff_t>(kept), members.end());
}

struct BuildLimits {
  size_t depth, values = SIZE_MAX;
  bool sorted = false;
};

/// Builds a value from events.
class Builder final : public JsonEvents {
 public:
  Builder(std::string_view where, BuildLimits limits, const KeepJson* keep = nullptr)
      : where_(where), limits_(limits), keep_(keep) {}
  Json take() { return std::move(root_); }
  /// The number of marked strings. A marked key counts 2, so that the result exceeds the number of
  /// replacements and parse_json() refuses the text.
  size_t marks() const { return marks_; }

  void null() override { add_scalar(nullptr); }
  void boolean(bool value) override { add_scalar(value); }
  void signed_number(int64_t value) override { add_scalar(value); }
  void unsigned_number(uint64_t value) override { add_scalar(value); }
  void float_number(double value, std::string_view) override { add_scalar(value); }
  void string(std::string& text) override {
    if (!text.starts_with(Json::kRawMark)) return add_scalar(std::string_view(text));
    ++marks_;
    const std::string_view number = std::string_view(text).substr(Json::kRawMark.size());
    const bool is_raw = !number.empty() && raw_number_of(number) == number;
    add_scalar(is_raw ? Json::raw_number(std::string(number)) : Json(std::string_view(text)));
  }
  void begin_object() override { open(Json::object()); }
  void key(std::string& text) override {
    marks_ += text.starts_with(Json::kRawMark) ? 2 : 0;
    count_value();
    open_.back().key = text;
  }
  void end_object() override {
    Json value = close();
    Json::Object& members = value.items();
    unite_keys(members);
    if (limits_.sorted) {
      std::sort(members.begin(), members.end(), [](auto& a, auto& b) { return a.first < b.first; });
    }
    if (keep_ == nullptr || (*keep_)(value)) add(std::move(value));
  }
  void begin_array() override { open(Json::array()); }
  void end_array() override { add(close()); }

 private:
  struct Level {
    Json value;
    std::string key;  ///< key of the next member
  };

  void unexpected(const std::string&) override {}  // every event is accepted
  void count_value() {
    if (++values_ <= limits_.values) return;
    throw Error(fmt::format("{}: expected at most {} values, found more", where_, limits_.values));
  }
  void open(Json value) {
    if (!open_.empty()) count_value();
    if (open_.size() == limits_.depth) {
      throw Error(fmt::format("{}: nested deeper than {} levels", where_, limits_.depth));
    }
    open_.push_back({std::move(value), {}});
  }
  Json close() {
    Json value = std::move(open_.back().value);
    open_.pop_back();
    return value;
  }
  void add_scalar(Json value) {
    count_value();
    add(std::move(value));
  }
  void add(Json value) {
    if (open_.empty()) {
      root_ = std::move(value);
    } else if (Level& level = open_.back(); level.value.is_array()) {
      level.value.push_back(std::move(value));
    } else {
      level.value.items().emplace_back(level.key, std::move(value));
    }
  }

  std::string_view where_;
  BuildLimits limits_;
  const KeepJson* keep_;
  Json root_;
  std::vector<Level> open_;
  size_t values_ = 0, marks_ = 0;
};

}  // namespace

Json parse_json_pieces(std::string_view where, const JsonPieces& next, const KeepJson& keep) {
  Builder builder(where, {.depth = 80}, &keep);
  read_json_pieces(where, next, builder);
  return builder.take();
}

Json parse_json(std::string_view where, std::string_view text) {
  constexpr size_t kMaxOrdered = 256u << 10;
  std::string marked;
  size_t marks = 0;
  if (has_raw_numbers(text)) {
    check_json_text(where, text);
    marked = mark_numbers(text, marks);
    text = marked;
  }
  Builder builder(where, {.depth = 64, .values = 1'000'000, .sorted = text.size() > kMaxOrdered});
  read_json(where, text, builder);
  if (builder.marks() > marks) {
    throw Error(
        fmt::format("{}: not JSON: a number as a key, or a string that begins with \\uf8fftwofour:", where));
  }
  return builder.take();
}

Json Json::parse(std::string_view text) {
  constexpr std::string_view kWhere = "JSON";
  try {
    Builder builder(kWhere, {.depth = 256});
    read_json(kWhere, text, builder);
    return builder.take();
  } catch (const Error& e) {
    throw exception(e.what());
  }
}

}  // namespace twofour
