#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <span>
#include <string>

#include "lib/source/hub/range_answer.h"
#include "lib/source/hub/settings.h"

namespace twofour {

/// The policy for repeating requests that fail for a while.
struct RetryPolicy {
  int attempts = 6;                               ///< in a row without a byte; then the failure is an Error
  std::chrono::milliseconds first_wait{500};      ///< doubles each time
  std::chrono::seconds longest_retry_after{600};  ///< if a server requests a longer wait, that is an Error
};

/// The target of a redirect, for further requests for the same object, and the content that was there.
class RedirectCache {
 public:
  /// Empty if there is none, or if it is too old for a signed URL.
  std::string find() const;
  void keep(const Url& url);
  void forget();
  /// True if that place has the same content as before, by its ETag.
  bool is_same_content(const Url& url, const std::string& etag);

 private:
  mutable std::mutex mutex_;
  std::string url_;
  std::chrono::steady_clock::time_point since_{};
  std::map<std::string, std::string> etags_;  ///< by URL without query
};

/// Requests to the Hub and other servers: redirects, tokens, retries, and the check that all answers are of
/// the same content. Safe from several threads.
class Fetcher {
 public:
  explicit Fetcher(HubSettings settings, RetryPolicy policy = {});
  const HubSettings& settings() const { return settings_; }

  /// The body of a small answer. `what` is for messages. Throws Error if it is longer than `limit` bytes or
  /// is refused.
  std::string get_text(const Url& url, const std::string& what, uint64_t limit) const;

  /// Size and ETag or Last-Modified of a file on a server without listings. False if it is not there. Storage
  /// that does not list its files may refuse (403) absent files, so 403 means absent if the file is
  /// `optional`.
  bool look_at(RemoteObject& object, bool optional = false) const;

  /// Bytes [offset, offset + bytes) of an object, in order and each once, even if connections break in
  /// between. Throws Error if the object changed, its server ignores ranges or the failure lasts.
  void read(const RemoteObject& object, RedirectCache& redirects, uint64_t offset, uint64_t bytes,
            const std::function<void(std::span<const uint8_t>)>& sink) const;

 private:
  HubSettings settings_;
  RetryPolicy policy_;
};

}  // namespace twofour
