#include "formats/json.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "formats/error.h"

namespace twofour {

Json parse_json(std::string_view where, std::string_view text) {
  constexpr int kMaxDepth = 64;
  bool too_deep = false;
  const auto guard = [&](int depth, Json::parse_event_t, Json&) {
    too_deep = too_deep || depth > kMaxDepth;
    return !too_deep;
  };
  refuse_zero_byte(where, text);
  Json document;
  try {
    document = Json::parse(text.begin(), text.end(), guard);
  } catch (const Json::parse_error& e) {
    throw Error(fmt::format("{}: not JSON: error at byte {}", where, e.byte));
  } catch (const Json::out_of_range&) {
    throw Error(fmt::format("{}: not JSON: a number is too large", where));
  }
  if (too_deep) throw Error(fmt::format("{}: nested deeper than {} levels", where, kMaxDepth));
  return document;
}

void refuse_zero_byte(std::string_view where, std::string_view text) {
  const size_t at = text.find('\0');
  if (at != text.npos) throw Error(fmt::format("{}: not JSON: error at byte {}", where, at + 1));
}

std::string json_quote(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace twofour
