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

/// The rule by which a failed request is repeated.
struct RetryPolicy {
  int attempts = 6;  ///< number of failures in a row without a received byte that make an Error
  std::chrono::milliseconds first_wait{500};  ///< wait after the first failure; it doubles with each failure
  /// The longest wait that a server may request. A longer wait is an Error.
  std::chrono::seconds longest_retry_after{600};
  /// The number of failures in a row after fewer than `short_bytes` bytes each that make an Error. A server
  /// that gives a few bytes and cuts would be requested for ever.
  int short_attempts = 12;
  uint64_t short_bytes = 64 << 10;
};

/// Remembers the redirects of requests for an object, and the content at their ends.
class RedirectCache {
 public:
  /// The URL of the last redirect. Empty if there is none, or if it is too old for a signed URL.
  std::string find() const;
  void keep(const Url& url);
  void forget();
  /// True if the content at `url` has the same ETag as before.
  bool is_same_content(const Url& url, const std::string& etag);

 private:
  mutable std::mutex mutex_;
  std::string url_;
  std::chrono::steady_clock::time_point since_{};
  std::map<std::string, std::string> etags_;  ///< ETags by URL without the query
};

/// Sends requests to the Hub and to other servers. It handles redirects, tokens and retries, and checks that
/// all answers are of the same content. Several threads may use it at once.
class Fetcher {
 public:
  explicit Fetcher(HubSettings settings, RetryPolicy policy = {});
  const HubSettings& settings() const { return settings_; }

  /// Returns the body of a small answer. `what` names the request in messages. Throws Error if the request is
  /// refused, or if the body is longer than `limit` bytes.
  std::string get_text(const Url& url, const std::string& what, uint64_t limit) const;

  /// Finds size and ETag, or Last-Modified, of a file on a server without listings. Returns false if the file
  /// is absent. Storage that does not list its files may answer 403 for absent files, so 403 means absent if
  /// the file is `optional`.
  bool look_at(RemoteObject& object, bool optional = false) const;

  /// Passes bytes [offset, offset + bytes) of an object to `sink`, in order and each byte once, even if
  /// connections break. Throws Error if the object changed, if its server ignores ranges, or if the failure
  /// lasts.
  void read(const RemoteObject& object, RedirectCache& redirects, uint64_t offset, uint64_t bytes,
            const std::function<void(std::span<const uint8_t>)>& sink) const;

 private:
  HubSettings settings_;
  RetryPolicy policy_;
};

}  // namespace twofour
