#include "lib/base/findings/shown_url.h"

#include <algorithm>
#include <cctype>

namespace twofour {
namespace {

constexpr std::string_view kMark = "://";
constexpr std::string_view kEnds = " \t\r\n\"'`<>";  ///< bytes that end a URL within a text

bool is_digit(char c) { return c >= '0' && c <= '9'; }

bool is_of_scheme(char c) {
  return is_digit(c) || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '+' || c == '-' || c == '.';
}

/// True if the text after the last colon is not a port. It may be part of a password that ends somewhere
/// else.
bool has_odd_port(std::string_view host) {
  const size_t colon = host.rfind(':');
  if (colon == host.npos || host.ends_with(']')) return false;
  const std::string_view port = host.substr(colon + 1);
  return port.empty() || !std::all_of(port.begin(), port.end(), is_digit);
}

/// The number "#2" at the end of a URL, which distinguishes it from other URLs (see GivenUrls), and the
/// punctuation after the number: "#2:".
std::string_view number_of(std::string_view url) {
  const size_t mark = url.rfind('#');
  if (mark == url.npos || url.find('?') != url.npos) return {};
  const std::string_view number = url.substr(mark + 1);
  const size_t digits = std::min(number.find_first_not_of("0123456789"), number.size());
  const bool is_number = digits > 0 && digits < 4 && number.find_first_not_of(":;,.)", digits) == number.npos;
  return is_number ? url.substr(mark) : std::string_view();
}

/// True if the text after a scheme has a query with a key: "host/a?sig=x".
bool has_query(std::string_view rest) {
  rest = rest.substr(0, rest.find_first_of(kEnds));
  const size_t mark = rest.find('?');
  if (mark == rest.npos) return false;
  const std::string_view query = rest.substr(mark + 1);
  size_t key = 0;
  while (key < query.size() && (is_of_scheme(query[key]) || query[key] == '_' || query[key] == '%')) ++key;
  return key > 0 && key < query.size() && query[key] == '=';
}

/// True if a URL begins with `text`, whose first `colon` bytes may be a scheme. The two slashes may be
/// missing after a scheme that addresses have, and before a query with a key. "re:" begins a pattern.
bool is_url(std::string_view text, size_t colon) {
  std::string scheme(text.substr(0, colon));
  for (char& c : scheme) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  const std::string_view rest = text.substr(colon + 1);
  if (rest.starts_with("//")) return true;
  if (rest.empty() || kEnds.find(rest[0]) != std::string_view::npos) return false;
  for (const char* known : {"http", "https", "hf", "s3", "gs", "ftp"}) {
    if (scheme == known) return true;
  }
  return scheme.size() > 1 && scheme != "re" && has_query(rest);
}

}  // namespace

std::string shown_url(std::string_view url) {
  const size_t mark = url.find(kMark);
  // A question mark at the end belongs to the sentence around the URL.
  if (url.ends_with('?') && url.find_first_of("?#") == url.size() - 1)
    return shown_url(url.substr(0, url.size() - 1)) + "?";
  const std::string_view shown = url.substr(0, url.find_first_of("?#"));
  if (mark == url.npos || shown.size() < mark) {
    const size_t at = shown.rfind('@');  // "user:password@host"
    return std::string(shown.find(':') < at && at != shown.npos ? shown.substr(at + 1) : shown);
  }
  const std::string scheme(url.substr(0, mark + kMark.size()));
  const std::string_view rest = shown.substr(scheme.size());
  const std::string_view host = rest.substr(0, rest.find('/'));
  // A password may have a question mark or a slash. Then it ends after the apparent host.
  const bool ends_early = host.size() == rest.size() && shown.size() < url.size();
  const bool at_follows = url.find('@', scheme.size() + host.size()) != url.npos;
  const size_t at = host.rfind('@');
  if (at_follows && (ends_early || (at == host.npos && has_odd_port(host)))) return scheme;
  return at == host.npos ? std::string(shown) : scheme + std::string(rest.substr(at + 1));
}

size_t find_url(std::string_view text) {
  for (size_t colon = text.find(':'); colon != text.npos; colon = text.find(':', colon + 1)) {
    size_t begin = colon;
    while (begin > 0 && is_of_scheme(text[begin - 1])) --begin;
    if (begin < colon && is_url(text.substr(begin), colon - begin)) return begin;
  }
  return text.npos;
}

std::string with_shown_urls(std::string_view text) {
  std::string shown;
  for (size_t begin = find_url(text); begin != text.npos; begin = find_url(text)) {
    shown += text.substr(0, begin);
    text.remove_prefix(begin);
    const size_t end = std::min(text.find_first_of(kEnds), text.size());
    shown += shown_url(text.substr(0, end));
    shown += number_of(text.substr(0, end));
    text.remove_prefix(end);
  }
  return shown + std::string(text);
}

}  // namespace twofour
