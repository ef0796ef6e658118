#include "lib/source/hub/url.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "formats/error.h"
#include "formats/json.h"
#include "lib/base/findings/shown_url.h"

namespace twofour {
namespace {

std::string in_small_letters(std::string_view text) {
  std::string small(text);
  std::transform(small.begin(), small.end(), small.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return small;
}

bool is_unreserved(unsigned char c) {
  return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '-' || c == '.' ||
         c == '_' || c == '~';
}

int digit_of(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

}  // namespace

Url parse_url(std::string_view where, std::string_view text) {
  Url url;
  const size_t colon = text.find("://");
  if (colon != text.npos) url.scheme = in_small_letters(text.substr(0, colon));
  if (url.scheme != "https" && url.scheme != "http") {
    throw Error(
        fmt::format("{}: expected a URL of https://, found {}", where, json_quote_short(shown_url(text))));
  }
  std::string_view rest = text.substr(colon + 3);
  const size_t end = std::min(rest.find_first_of("/?#"), rest.size());
  url.host = in_small_letters(rest.substr(0, end));
  if (url.host.find('@') != url.host.npos) {
    throw Error(fmt::format(
        "{}: expected a URL without user and password, found one with; set HF_TOKEN instead", where));
  }
  const bool is_host = !url.host.empty() && std::all_of(url.host.begin(), url.host.end(), [](char c) {
    return is_unreserved(static_cast<unsigned char>(c)) || c == ':' || c == '[' || c == ']';
  });
  if (!is_host)
    throw Error(
        fmt::format("{}: expected a URL with a host, found {}", where, json_quote_short(shown_url(text))));
  rest.remove_prefix(end);
  rest = rest.substr(0, rest.find('#'));
  const size_t query = std::min(rest.find('?'), rest.size());
  url.path = rest.substr(0, query);
  url.query = rest.substr(query);
  if (url.path.empty()) url.path = "/";
  return url;
}

Url follow(const Url& from, std::string_view location, bool http_allowed) {
  const std::string where = shown_url(from.text());
  std::string whole(location);
  if (location.starts_with("//")) {
    whole = from.scheme + ":" + whole;
  } else if (location.starts_with("/")) {
    whole = from.origin() + whole;
  } else if (location.find("://") == location.npos) {
    whole = from.origin() + from.path.substr(0, from.path.rfind('/') + 1) + whole;
  }
  Url to = parse_url(where + ": Location", whole);
  if (to.scheme == "https" || (http_allowed && from.scheme == "http")) return to;
  throw Error(fmt::format("{}: expected a redirect to https://, found one to {}", where, to.origin()));
}

std::string percent_encoded(std::string_view text, bool keep_slashes) {
  std::string encoded;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (is_unreserved(byte) || (c == '/' && keep_slashes)) {
      encoded += c;
    } else {
      encoded += fmt::format("%{:02X}", byte);
    }
  }
  return encoded;
}

std::string percent_decoded(std::string_view where, std::string_view text) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      decoded += text[i];
      continue;
    }
    const int high = i + 2 < text.size() ? digit_of(text[i + 1]) : -1;
    const int low = high < 0 ? -1 : digit_of(text[i + 2]);
    if (low < 0) {
      throw Error(fmt::format("{}: expected two digits behind each '%', found {}", where,
                              json_quote_short(std::string(text))));
    }
    decoded += static_cast<char>(16 * high + low);
    i += 2;
  }
  return decoded;
}

}  // namespace twofour
