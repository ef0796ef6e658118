#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "lib/source/hub/http.h"
#include "lib/source/hub/sha.h"
#include "lib/source/hub/url.h"

namespace twofour {

/// A file behind a URL, pinned to the contents that it had when it was listed.
struct RemoteObject {
  std::string name;   ///< relative to its folder
  std::string shown;  ///< for messages: "hf://org/name@COMMIT/model.safetensors"
  Url url;            ///< without redirects
  uint64_t size = 0;
  std::string etag;      ///< of the contents, normalized; empty: the server sends none
  std::string modified;  ///< Last-Modified, if there is no ETag; empty: unknown
  std::string sha256;    ///< of a file of Git LFS, in hexadecimal digits; empty: unknown
  std::string git_sha1;  ///< of another file, as git names its contents; empty: unknown
  std::string commit;    ///< that X-Repo-Commit must name; empty: not of the Hub

  /// True if it was listed with a hash.
  bool has_hash() const { return !sha256.empty() || !git_sha1.empty(); }
  /// True if anything distinguishes these contents from others of the same name and size. Otherwise only
  /// answers of one run can be compared with each other, and the contents are not known to be the same in
  /// another run.
  bool is_pinned() const { return has_hash() || !etag.empty() || !modified.empty() || !commit.empty(); }
};

/// Hashes the bytes of an object, from the first on, in the way of the list that it is from; does nothing if
/// the list has no hash.
class ContentHasher {
 public:
  explicit ContentHasher(const RemoteObject& object);
  void update(std::span<const uint8_t> bytes);
  /// The result for all bytes: "expected SHA-256 ..., found ..."; empty if the hash is the listed one.
  /// update() must not be called afterwards.
  std::string problem();

 private:
  const RemoteObject& object_;
  Sha256 sha256_;
  Sha1 sha1_;
};

/// An ETag without "W/" and quotes.
std::string normalized_etag(std::string etag);

/// The whole number in a header field; nullopt for anything else.
std::optional<uint64_t> number_of(std::string_view text);

/// "bytes 0-99/1234" of a Content-Range field; the total is nullopt if it is unknown.
struct ContentRange {
  uint64_t first, last;
  std::optional<uint64_t> total;
};
std::optional<ContentRange> parse_content_range(std::string_view text);

/// Throws Error: the object changed since it was listed.
[[noreturn]] void refuse_change(const RemoteObject& object, const char* of, const std::string& expected,
                                const std::string& found);

/// Throws Error if an answer has other contents than the object was listed with. For a redirect, only the
/// Hub's fields about the target file count.
void check_contents(const RemoteObject& object, const HttpHead& head, bool is_redirect);

/// Takes bytes [begin, begin + bytes) of an object from one answer, which has a part of it or all of it; in
/// the latter case bytes before `begin` are dropped. Throws Error if the answer is of another length or
/// place.
class RangeReceiver : public HttpReceiver {
 public:
  using Sink = std::function<void(std::span<const uint8_t>)>;
  RangeReceiver(const RemoteObject& object, uint64_t begin, uint64_t bytes, const Sink& sink)
      : object_(object), begin_(begin), left_(bytes), sink_(sink) {}
  bool head(const HttpHead& head) override;
  bool body(std::span<const uint8_t> piece) override;
  /// Bytes that did not arrive.
  uint64_t left() const { return left_; }

  HttpHead answer;

 private:
  bool take_part(const HttpHead& head);
  bool take_whole(const HttpHead& head);
  void check_size(std::optional<uint64_t> size) const;

  const RemoteObject& object_;
  const uint64_t begin_;
  uint64_t left_, skip_ = 0;
  bool is_whole_ = false;
  const Sink& sink_;
};

}  // namespace twofour
