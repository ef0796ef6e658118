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
  Json document;
  try {
    document = Json::parse(text.begin(), text.end(), guard);
  } catch (const Json::parse_error& e) {
    throw Error(fmt::format("{}: not JSON: error at byte {}", where, e.byte));
  }
  if (too_deep) throw Error(fmt::format("{}: nested deeper than {} levels", where, kMaxDepth));
  return document;
}

std::string json_quote(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace twofour
