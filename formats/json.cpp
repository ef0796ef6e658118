#include "formats/json.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "formats/error.h"

namespace twofour {
namespace {

/// What a string begins with that stands for a number JSON has not: a private-use character and our name.
constexpr std::string_view kMark = "\xEF\xA3\xBFtwofour:";
constexpr std::string_view kNotFinite[] = {"NaN", "Infinity", "-Infinity"};

/// `text` with numbers that are not finite as marked strings.
std::string mark_not_finite(std::string_view text) {
  std::string out;
  bool in_string = false;
  for (size_t i = 0; i < text.size();) {
    const char c = text[i];
    if (c == '"') in_string = !in_string;
    const std::string_view* token = nullptr;
    for (const std::string_view& t : kNotFinite) {
      if (!in_string && text.substr(i, t.size()) == t) token = &t;
    }
    if (token != nullptr) {
      out += fmt::format("\"{}{}\"", kMark, *token);
      i += token->size();
    } else {
      const size_t take = in_string && c == '\\' ? 2 : 1;  // an escaped quote ends nothing
      out += text.substr(i, take);
      i += take;
    }
  }
  return out;
}

}  // namespace

Json parse_json(std::string_view where, std::string_view text) {
  constexpr int kMaxDepth = 64;
  // Keeping the order of keys costs a search of the object for each of them. A config that lists 100,000
  // modules would take minutes, so a long document is sorted instead.
  constexpr size_t kMaxOrdered = 256u << 10;
  bool too_deep = false;
  const auto guard = [&](int depth, auto, const auto&) {
    too_deep = too_deep || depth > kMaxDepth;
    return !too_deep;
  };
  refuse_zero_byte(where, text);
  std::string marked;
  if (text.find("NaN") != text.npos || text.find("Infinity") != text.npos) {
    marked = mark_not_finite(text);
    text = marked;
  }
  Json document;
  try {
    if (text.size() > kMaxOrdered) {
      document = nlohmann::json::parse(text.begin(), text.end(), guard);
    } else {
      document = Json::parse(text.begin(), text.end(), guard);
    }
  } catch (const nlohmann::detail::parse_error& e) {
    throw Error(fmt::format("{}: not JSON: error at byte {}", where, e.byte));
  } catch (const nlohmann::detail::out_of_range&) {
    throw Error(fmt::format("{}: not JSON: a number is too large", where));
  }
  if (too_deep) throw Error(fmt::format("{}: nested deeper than {} levels", where, kMaxDepth));
  return document;
}

std::string format_json(const Json& json) {
  std::string text = json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
  for (const std::string_view token : kNotFinite) {
    const std::string marked = fmt::format("\"{}{}\"", kMark, token);
    for (size_t at = 0; (at = text.find(marked, at)) != text.npos; at += token.size()) {
      text.replace(at, marked.size(), token);
    }
  }
  return text;
}

void refuse_zero_byte(std::string_view where, std::string_view text) {
  const size_t at = text.find('\0');
  if (at != text.npos) throw Error(fmt::format("{}: not JSON: error at byte {}", where, at + 1));
}

std::string json_quote(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace twofour
