#pragma once
#include <span>
#include <string>
#include <string_view>

namespace twofour {

/// Hides the secrets of URLs on a command line, which are signatures in queries, users and passwords.
/// Commands, messages, documents and files get a URL only in the form of shown_url(). Only RemoteSource asks
/// for the whole URL.
class GivenUrls {
 public:
  /// Replaces each URL in `words` by what shown_url() returns. A URL extends to the end of its argument. If
  /// two different URLs become equal, the second ends in "#2".
  explicit GivenUrls(std::span<std::string> words);
  /// Forgets the URLs.
  ~GivenUrls();
  GivenUrls(const GivenUrls&) = delete;
  GivenUrls& operator=(const GivenUrls&) = delete;
};

/// The whole URL for a `url` that GivenUrls shows. Returns any other `url` unchanged.
std::string whole_url(const std::string& url);

/// An argument of the command line as it was given, for a text that only mentions URLs, such as a prompt.
std::string word_as_given(const std::string& word);

}  // namespace twofour
