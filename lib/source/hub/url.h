#pragma once
#include <string>
#include <string_view>

namespace twofour {

/// An absolute URL, split into its parts.
struct Url {
  std::string scheme;  ///< "https", in lower case
  std::string host;    ///< host with its port, in lower case
  std::string path;    ///< from the first slash up to '?' or '#'; at least "/"
  std::string query;   ///< query with its '?'; empty if there is none
  /// Returns "https://host:port", the server for which a secret is meant.
  std::string origin() const { return scheme + "://" + host; }
  std::string text() const { return origin() + path + query; }
};

/// Parses a URL. Throws Error naming `where` unless it is http:// or https:// with a host. Also throws Error
/// on a URL with a user or a password, which would show in messages.
Url parse_url(std::string_view where, std::string_view text);

/// Returns the URL that a redirect from `from` leads to. `location` may be relative. Throws Error if the
/// redirect leads from https to another scheme. From http it may lead to http only if `http_allowed`.
Url follow(const Url& from, std::string_view location, bool http_allowed);

/// Returns `text` with %XX for each byte that is reserved in a URL. Slashes stay if `keep_slashes`.
std::string percent_encoded(std::string_view text, bool keep_slashes);
/// Decodes %XX. Throws Error naming `where` on a '%' without two hexadecimal digits.
std::string percent_decoded(std::string_view where, std::string_view text);

}  // namespace twofour
