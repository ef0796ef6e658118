#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <span>
#include <string>

#include "lib/hub/range_answer.h"
#include "lib/hub/settings.h"

namespace twofour {

/// How requests that fail for a while are repeated.
struct RetryPolicy {
  int attempts = 6;                               ///< in a row without a byte; then the failure is an Error
  std::chrono::milliseconds first_wait{500};      ///< doubles each time
  std::chrono::seconds longest_retry_after{600};  ///< a server that asks for more is an Error
};

/// Where a redirect led, for further requests for the same object, and which content was there.
class RedirectCache {
 public:
  /// Empty where there is none, or it is older than servers sign URLs for.
  std::string find() const;
  void keep(const Url& url);
  void forget();
  /// Whether that place has the content that it had before, by its ETag.
  bool is_same_content(const Url& url, const std::string& etag);

 private:
  mutable std::mutex mutex_;
  std::string url_;
  std::chrono::steady_clock::time_point since_{};
  std::map<std::string, std::string> etags_;  ///< by URL without query
};

/// Requests to the Hub and other servers: redirects, tokens, repetition, and the checks that all answers are
/// of one content. Safe from several threads.
class Fetcher {
 public:
  explicit Fetcher(HubSettings settings, RetryPolicy policy = {});
  const HubSettings& settings() const { return settings_; }

  /// The body of a small answer. `what` is for messages. Throws Error where it is longer than `limit` bytes
  /// or is refused.
  std::string get_text(const Url& url, const std::string& what, uint64_t limit) const;

  /// Size and ETag or Last-Modified of a file on a server that has no list. False if it is not there; storage
  /// that shows no list may refuse (403) what is not there, which counts where the file is `optional`.
  bool look_at(RemoteObject& object, bool optional = false) const;

  /// Bytes [offset, offset + bytes) of an object, in order and each once, whatever breaks in between. Throws
  /// Error where the object changed, its server ignores ranges or the failure lasts.
  void read(const RemoteObject& object, RedirectCache& redirects, uint64_t offset, uint64_t bytes,
            const std::function<void(std::span<const uint8_t>)>& sink) const;

 private:
  HubSettings settings_;
  RetryPolicy policy_;
};

}  // namespace twofour
