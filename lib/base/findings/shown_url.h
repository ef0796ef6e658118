#pragma once
#include <string>
#include <string_view>

namespace twofour {

/// The part of a URL that people may see. It lacks query and fragment, which may hold a signature, and user
/// and password. If user and password cannot be told apart from the host, only the scheme remains. Text that
/// is not a URL loses everything from a '?' or '#' on, and "user:password@" before a host.
std::string shown_url(std::string_view url);

/// The position of the first URL in a text, which may lack its slashes ("https:h?sig=x"); npos: it has none.
size_t find_url(std::string_view text);

/// Replaces each URL of a text by what shown_url() returns, but keeps the number "#2" of GivenUrls. A URL
/// ends at a space or a quote.
std::string with_shown_urls(std::string_view text);

}  // namespace twofour
