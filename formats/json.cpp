#include "formats/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "formats/error.h"

namespace twofour {
namespace {

/// What a string begins with that stands for a number that has no other place in a document: a private-use
/// character and our name.
constexpr std::string_view kMark = "\xEF\xA3\xBFtwofour:";
constexpr std::string_view kNotFinite[] = {"NaN", "Infinity", "-Infinity"};
/// No integer of fewer digits needs more than 64 bits.
constexpr size_t kWideDigits = 19;

bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// Whether `token`, which may have a sign, is an integer of JSON that needs more than 64 bits.
bool is_wide_integer(std::string_view token) {
  const bool negative = token.starts_with('-');
  const std::string_view digits = token.substr(negative);
  if (digits.size() < kWideDigits || digits[0] == '0' || !std::all_of(digits.begin(), digits.end(), is_digit))
    return false;
  const std::string_view largest = negative ? "9223372036854775808" : "18446744073709551615";
  return digits.size() != largest.size() ? digits.size() > largest.size() : digits > largest;
}

/// The number at the beginning of `text` that a marked string must stand for; empty where none does.
std::string_view number_to_mark(std::string_view text) {
  for (const std::string_view token : kNotFinite) {
    if (text.starts_with(token)) return text.substr(0, token.size());
  }
  const std::string_view token = text.substr(0, text.find_first_not_of("0123456789+-.eE"));
  return is_wide_integer(token) ? token : std::string_view();
}

/// `text` with numbers that need it as marked strings; adds how many there are to `count`.
std::string mark_numbers(std::string_view text, size_t& count) {
  std::string out;
  bool in_string = false;
  for (size_t i = 0; i < text.size();) {
    const char c = text[i];
    if (c == '"') in_string = !in_string;
    const bool begins = !in_string && (c == '-' || c == 'N' || c == 'I' || is_digit(c));
    const std::string_view number = begins ? number_to_mark(text.substr(i)) : std::string_view();
    if (!number.empty()) {
      out += fmt::format("\"{}{}\"", kMark, number);
      i += number.size();
      ++count;
      continue;
    }
    // An escaped quote ends nothing, and the rest of a number is not looked at again.
    size_t take = in_string && c == '\\' ? 2 : 1;
    if (begins)
      take = std::max(take, std::min(text.find_first_not_of("0123456789+-.eE", i), text.size()) - i);
    out += text.substr(i, take);
    i += take;
  }
  return out;
}

bool has_numbers_to_mark(std::string_view text) {
  if (text.find("NaN") != text.npos || text.find("Infinity") != text.npos) return true;
  size_t digits = 0;
  for (const char c : text) {
    digits = is_digit(c) ? digits + 1 : 0;
    if (digits == kWideDigits) return true;
  }
  return false;
}

/// Refuses what would take the parser far more memory than its text, or its stack. Done before parsing, for a
/// callback makes nlohmann-json look at all of an array after each of its objects.
void check_extent(std::string_view where, std::string_view text) {
  constexpr int kMaxDepth = 64;
  constexpr size_t kMaxValues = 1'000'000;
  int depth = 0;
  size_t values = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '"') in_string = !in_string;
    if (in_string) {
      i += c == '\\';
      continue;
    }
    const bool opens = c == '[' || c == '{';
    depth += opens - (c == ']' || c == '}');
    values += opens || c == ',' || c == ':';
    if (depth > kMaxDepth) throw Error(fmt::format("{}: nested deeper than {} levels", where, kMaxDepth));
    if (values > kMaxValues) {
      throw Error(fmt::format("{}: expected at most {} values, found more", where, kMaxValues));
    }
  }
}

/// How many strings begin with the mark; a key, which no number is, counts twice.
size_t count_marks(const Json& json) {
  size_t count = json.is_string() && json.get_ref<const std::string&>().starts_with(kMark);
  if (json.is_object()) {
    for (const auto& [key, value] : json.items()) count += key.starts_with(kMark) ? 2 : 0;
  }
  if (json.is_structured()) {
    for (const Json& value : json) count += count_marks(value);
  }
  return count;
}

}  // namespace

Json parse_json(std::string_view where, std::string_view text) {
  // Keeping the order of keys costs a search of the object for each of them. A config that lists 100,000
  // modules would take minutes, so a long document is sorted instead.
  constexpr size_t kMaxOrdered = 256u << 10;
  refuse_zero_byte(where, text);
  check_extent(where, text);
  std::string marked;
  size_t marks = 0;
  if (has_numbers_to_mark(text)) {
    marked = mark_numbers(text, marks);
    text = marked;
  }
  Json document;
  try {
    if (text.size() > kMaxOrdered) {
      document = nlohmann::json::parse(text.begin(), text.end());
    } else {
      document = Json::parse(text.begin(), text.end());
    }
  } catch (const nlohmann::detail::parse_error& e) {
    throw Error(fmt::format("{}: not JSON: error at byte {}", where, e.byte));
  } catch (const nlohmann::detail::out_of_range&) {
    throw Error(fmt::format("{}: not JSON: a number is too large", where));
  }
  if (count_marks(document) > marks) {
    throw Error(
        fmt::format("{}: not JSON: a number as a key, or a string that begins with \\uf8fftwofour:", where));
  }
  return document;
}

std::string format_json(const Json& json) {
  std::string text = json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
  const std::string opening = fmt::format("\"{}", kMark);
  std::string out;
  size_t copied = 0;
  for (size_t at = 0; (at = text.find(opening, at)) != text.npos;) {
    const size_t begin = at + opening.size(), end = text.find('"', begin);
    const std::string_view number = std::string_view(text).substr(begin, end - begin);
    const bool within_string = text[at - (at > 0)] == '\\';
    if (within_string || number.empty() || number_to_mark(number) != number) {
      at = begin;
      continue;
    }
    out.append(text, copied, at - copied).append(number);
    copied = at = end + 1;
  }
  return out.append(text, copied);
}

std::string json_line(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

void refuse_zero_byte(std::string_view where, std::string_view text) {
  const size_t at = text.find('\0');
  if (at != text.npos) throw Error(fmt::format("{}: not JSON: error at byte {}", where, at + 1));
}

void refuse_long_tokens(std::string_view where, std::string_view text) {
  constexpr size_t kMaxBytes = 16u << 20;
  constexpr std::string_view kEnds = "{}[]:, \n\r\t\"";
  size_t kept = 0;  // what the lexer has read since here it holds
  for (size_t at = 0, end = 0; at < text.size(); at = end) {
    end = at + 1;
    if (text[at] == '"') {
      while (end < text.size() && text[end] != '"') end += text[end] == '\\' ? 2 : 1;
      ++end;
      kept = at;
    } else if (kEnds.find(text[at]) == kEnds.npos) {
      end = std::min(text.find_first_of(kEnds, at), text.size());
      if (text[at] == '-' || is_digit(text[at])) kept = at;
    }
    if (end - kept > kMaxBytes) {
      throw Error(
          fmt::format("{}: expected at most {} bytes in a string or number or between two, found more", where,
                      kMaxBytes));
    }
  }
}

template <class T>
T whole_number(const Json& json) {
  if (json.is_number_unsigned()) {
    if (const auto n = json.get<uint64_t>(); std::in_range<T>(n)) return static_cast<T>(n);
  } else if (json.is_number_integer()) {
    if (const auto n = json.get<int64_t>(); std::in_range<T>(n)) return static_cast<T>(n);
  }
  throw Json::type_error::create(302, fmt::format("no whole number of {} bits", 8 * sizeof(T)), &json);
}
template int whole_number(const Json&);
template int64_t whole_number(const Json&);
template uint32_t whole_number(const Json&);
template uint64_t whole_number(const Json&);

std::string json_quote_short(std::string_view text) {
  constexpr size_t kShown = 256;
  if (text.size() <= kShown) return json_quote(text);
  return fmt::format("{}... ({} bytes)", json_quote(text.substr(0, kShown)), text.size());
}

std::string json_quote(std::string_view text) { return json_line(Json(text)); }

}  // namespace twofour
