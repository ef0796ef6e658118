#pragma once
#include <span>
#include <string>
#include <string_view>

namespace twofour {

/// Keeps what URLs of a command line may have of secrets, signatures in queries, users and passwords, from
/// all that reads its words: commands, messages, documents and files know a URL by what people may see.
/// RemoteSource alone asks for the whole one.
class GivenUrls {
 public:
  /// Changes the words: each URL, which ends with its word, becomes what shown_url() gives. Where that is
  /// equal for two URLs, "#2" distinguishes the second.
  explicit GivenUrls(std::span<std::string> words);
  /// Forgets them.
  ~GivenUrls();
  GivenUrls(const GivenUrls&) = delete;
  GivenUrls& operator=(const GivenUrls&) = delete;
};

/// The URL that was given where `url` is one that GivenUrls shows; `url` itself where it is none.
std::string whole_url(const std::string& url);

/// A word of the command line as it was given: for a text that only mentions URLs, as a prompt may.
std::string word_as_given(const std::string& word);

}  // namespace twofour
