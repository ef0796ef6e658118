#pragma once
#include <string>
#include <string_view>

namespace twofour {

/// An absolute URL, split into its parts.
struct Url {
  std::string scheme;  ///< "https", in small letters
  std::string host;    ///< with its port, in small letters
  std::string path;    ///< from the first slash to before '?' or '#'; at least "/"
  std::string query;   ///< with its '?'; empty: none
  /// "https://host:port", which identifies the server that a secret belongs to.
  std::string origin() const { return scheme + "://" + host; }
  std::string text() const { return origin() + path + query; }
};

/// Throws Error naming `where` on anything but http:// or https:// with a host, and on URLs with a user or a
/// password, which would show in messages.
Url parse_url(std::string_view where, std::string_view text);

/// The URL that a redirect from `from` leads to; `location` may be relative. Throws Error if it leads from
/// https to another scheme; http may lead to http only if `http_allowed`.
Url follow(const Url& from, std::string_view location, bool http_allowed);

/// A path in which each byte that is not unreserved in a URL becomes %XX; slashes stay if `keep_slashes`.
std::string percent_encoded(std::string_view text, bool keep_slashes);
/// The inverse. Throws Error naming `where` on a '%' without two digits.
std::string percent_decoded(std::string_view where, std::string_view text);

}  // namespace twofour
