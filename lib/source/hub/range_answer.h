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

/// A file with a URL, pinned to the contents that it had when it was listed.
struct RemoteObject {
  std::string name;   ///< name within the folder of the address
  std::string shown;  ///< name in messages: "hf://org/name@COMMIT/model.safetensors"
  Url url;            ///< URL before redirects
  uint64_t size = 0;
  std::string etag;      ///< ETag of the contents, normalized; empty if the server sends none
  std::string modified;  ///< Last-Modified if there is no ETag; empty if unknown
  std::string sha256;    ///< SHA-256 of a file of Git LFS, in hexadecimal digits; empty if unknown
  std::string git_sha1;  ///< hash by which git names the contents of any other file; empty if unknown
  std::string commit;    ///< commit that X-Repo-Commit must name; empty if the file is not on the Hub

  /// True if the listing has a hash of the contents.
  bool has_hash() const { return !sha256.empty() || !git_sha1.empty(); }
  /// True if these contents can be told from others of the same name and size. Otherwise, only the answers
  /// within one run can be compared with each other, and another run may get other contents.
  bool is_pinned() const { return has_hash() || !etag.empty() || !modified.empty() || !commit.empty(); }
};

/// Computes the hash of an object's bytes, from the first byte on, with the listing's kind of hash. It does
/// nothing if the listing has no hash.
class ContentHasher {
 public:
  explicit ContentHasher(const RemoteObject& object);
  void update(std::span<const uint8_t> bytes);
  /// Compares the hash of all bytes with the listed hash. Returns "expected SHA-256 ..., found ..." if they
  /// differ, otherwise "". update() must not be called afterwards.
  std::string problem();

 private:
  const RemoteObject& object_;
  Sha256 sha256_;
  Sha1 sha1_;
};

/// Returns an ETag without "W/" and quotes.
std::string normalized_etag(std::string etag);

/// Returns the whole number in a header field. Empty if the field is anything else.
std::optional<uint64_t> number_of(std::string_view text);

/// The content of a Content-Range field, such as "bytes 0-99/1234". `total` is empty if it is unknown.
struct ContentRange {
  uint64_t first, last;
  std::optional<uint64_t> total;
};
std::optional<ContentRange> parse_content_range(std::string_view text);

/// Throws Error that the object changed after it was listed. `of` names the property that differs.
[[noreturn]] void refuse_change(const RemoteObject& object, const char* of, const std::string& expected,
                                const std::string& found);

/// Throws Error if an answer is not of the contents that were listed. In a redirect, only the Hub's fields
/// about the target file are compared.
void check_contents(const RemoteObject& object, const HttpHead& head, bool is_redirect);

/// Takes bytes [begin, begin + bytes) of an object from one answer. If the answer has the whole object, the
/// bytes before `begin` are dropped. Throws Error if the length or the place of the answer is wrong.
class RangeReceiver : public HttpReceiver {
 public:
  using Sink = std::function<void(std::span<const uint8_t>)>;
  RangeReceiver(const RemoteObject& object, uint64_t begin, uint64_t bytes, const Sink& sink)
      : object_(object), begin_(begin), left_(bytes), sink_(sink) {}
  bool head(const HttpHead& head) override;
  bool body(std::span<const uint8_t> piece) override;
  /// The number of bytes that have not arrived.
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
