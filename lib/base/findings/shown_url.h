#pragma once
#include <string>
#include <string_view>

namespace twofour {

/// A URL for people: without query and fragment, which may hold a signature, and without user and password.
/// If these cannot be told apart from the host, only its scheme. Text that is no URL loses what follows a '?'
/// or '#', and "user:password@" before a host.
std::string shown_url(std::string_view url);

/// The place where the first URL of a text begins; npos: it has none.
size_t find_url(std::string_view text);

/// A text with each of its URLs as shown_url() shows it, except that the number "#2" of GivenUrls stays. A
/// URL ends at a space or a quote.
std::string with_shown_urls(std::string_view text);

}  // namespace twofour
