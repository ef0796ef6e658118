#pragma once
#include <span>
#include <string>
#include <string_view>

namespace twofour {

/// Hides the secrets of URLs on a command line: signatures in queries, users and passwords. Commands,
/// messages, documents and files see a URL only in the form that people may see. RemoteSource alone asks for
/// the whole URL.
class GivenUrls {
 public:
  /// Replaces each URL, which ends with its argument, by what shown_url() returns. If two URLs become equal,
  /// "#2" distinguishes the second.
  explicit GivenUrls(std::span<std::string> words);
  /// Forgets the URLs.
  ~GivenUrls();
  GivenUrls(const GivenUrls&) = delete;
  GivenUrls& operator=(const GivenUrls&) = delete;
};

/// The whole URL for a `url` that GivenUrls shows; `url` itself for any other.
std::string whole_url(const std::string& url);

/// An argument of the command line as it was given, for a text that only mentions URLs, such as a prompt.
std::string word_as_given(const std::string& word);

}  // namespace twofour
