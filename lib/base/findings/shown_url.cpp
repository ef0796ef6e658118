#include "lib/base/findings/shown_url.h"

#include <algorithm>

namespace twofour {
namespace {

constexpr std::string_view kMark = "://";

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

}  // namespace

std::string shown_url(std::string_view url) {
  const size_t mark = url.find(kMark);
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
  for (size_t mark = text.find(kMark); mark != text.npos; mark = text.find(kMark, mark + 1)) {
    size_t begin = mark;
    while (begin > 0 && is_of_scheme(text[begin - 1])) --begin;
    if (begin < mark) return begin;
  }
  return text.npos;
}

std::string with_shown_urls(std::string_view text) {
  std::string shown;
  for (size_t begin = find_url(text); begin != text.npos; begin = find_url(text)) {
    shown += text.substr(0, begin);
    text.remove_prefix(begin);
    const size_t end = std::min(text.find_first_of(" \t\r\n\"'`<>"), text.size());
    shown += shown_url(text.substr(0, end));
    shown += number_of(text.substr(0, end));
    text.remove_prefix(end);
  }
  return shown + std::string(text);
}

}  // namespace twofour
