#include "lib/source/hub/range_answer.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "formats/error.h"
#include "formats/json.h"

namespace twofour {
namespace {

/// The largest number of bytes that are read and dropped if an answer has the whole file instead of a range.
constexpr uint64_t kMostSkipped = 16u << 20;

}  // namespace

ContentHasher::ContentHasher(const RemoteObject& object) : object_(object) {
  const std::string head = fmt::format("blob {}", object.size);  // followed by a zero byte
  sha1_.update({reinterpret_cast<const uint8_t*>(head.c_str()), head.size() + 1});
}

void ContentHasher::update(std::span<const uint8_t> bytes) {
  if (!object_.sha256.empty()) {
    sha256_.update(bytes);
  } else if (!object_.git_sha1.empty()) {
    sha1_.update(bytes);
  }
}

std::string ContentHasher::problem() {
  if (!object_.has_hash()) return {};
  const bool is_lfs = !object_.sha256.empty();
  const std::string& expected = is_lfs ? object_.sha256 : object_.git_sha1;
  const std::string found = is_lfs ? sha256_.hex() : sha1_.hex();
  if (found == expected) return {};
  return fmt::format("expected {} {}, found {} in the download; start again",
                     is_lfs ? "SHA-256" : "git's SHA-1", expected, found);
}

std::string normalized_etag(std::string etag) {
  if (etag.starts_with("W/")) etag.erase(0, 2);
  std::erase(etag, '"');
  return etag;
}

std::optional<uint64_t> number_of(std::string_view text) {
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (text.empty() || error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return number;
}

std::optional<ContentRange> parse_content_range(std::string_view text) {
  if (!text.starts_with("bytes ")) return std::nullopt;
  text.remove_prefix(6);
  const size_t dash = text.find('-'), slash = text.find('/');
  if (dash == text.npos || slash == text.npos || slash < dash) return std::nullopt;
  const auto first = number_of(text.substr(0, dash)),
             last = number_of(text.substr(dash + 1, slash - dash - 1));
  if (!first || !last || *last < *first) return std::nullopt;
  return ContentRange{*first, *last, number_of(text.substr(slash + 1))};
}

void refuse_change(const RemoteObject& object, const char* of, const std::string& expected,
                   const std::string& found) {
  throw Error(fmt::format("{}: expected {} {}, found {}: it changed since it was listed; start again",
                          object.shown, of, json_quote_short(expected), json_quote_short(found)));
}

void check_contents(const RemoteObject& object, const HttpHead& head, bool is_redirect) {
  const auto differs = [](const std::string& expected, const std::string& found) {
    return !expected.empty() && !found.empty() && expected != found;
  };
  if (object.commit.empty()) {
    if (is_redirect) return;
    const std::string etag = normalized_etag(head.field("etag")), modified = head.field("last-modified");
    if (differs(object.etag, etag)) refuse_change(object, "ETag", object.etag, etag);
    if (object.etag.empty() && differs(object.modified, modified))
      refuse_change(object, "Last-Modified", object.modified, modified);
    return;
  }
  std::string etag = normalized_etag(head.field("x-linked-etag"));
  if (etag.empty() && !is_redirect) etag = normalized_etag(head.field("etag"));
  if (differs(object.etag, etag)) refuse_change(object, "ETag", object.etag, etag);
  const auto size = number_of(head.field("x-linked-size"));
  if (size && *size != object.size)
    refuse_change(object, "a size of", std::to_string(object.size), std::to_string(*size));
  const std::string commit = head.field("x-repo-commit");
  if (differs(object.commit, commit)) refuse_change(object, "commit", object.commit, commit);
}

bool RangeReceiver::head(const HttpHead& head) {
  answer = head;
  if (head.status == 206) return take_part(head);
  if (head.status == 200) return take_whole(head);
  return false;
}

bool RangeReceiver::body(std::span<const uint8_t> piece) {
  const size_t skipped = std::min<uint64_t>(piece.size(), skip_);
  skip_ -= skipped;
  piece = piece.subspan(skipped);
  if (!is_whole_ && piece.size() > left_) {
    throw Error(fmt::format("{}: expected {} more bytes, found more in the answer", object_.shown, left_));
  }
  piece = piece.first(std::min<uint64_t>(piece.size(), left_));
  if (!piece.empty()) sink_(piece);
  left_ -= piece.size();
  return !is_whole_ || left_ > 0;
}

bool RangeReceiver::take_part(const HttpHead& head) {
  const std::string text = head.field("content-range");
  const auto range = parse_content_range(text);
  if (!range || range->first != begin_ || range->last - range->first >= left_) {
    throw Error(fmt::format("{}: expected bytes {} to {}, found an answer with {}", object_.shown, begin_,
                            begin_ + left_ - 1, text.empty() ? "no range" : json_quote_short(text)));
  }
  check_size(range->total);
  return true;
}

bool RangeReceiver::take_whole(const HttpHead& head) {
  check_size(number_of(head.field("content-length")));
  if (begin_ > kMostSkipped) {
    throw Error(
        fmt::format("{}: expected a server that answers with ranges of bytes, found one that sends whole "
                    "files; download "
                    "the checkpoint first",
                    object_.shown));
  }
  is_whole_ = true;
  skip_ = begin_;
  return true;
}

void RangeReceiver::check_size(std::optional<uint64_t> size) const {
  if (size && *size != object_.size)
    refuse_change(object_, "a size of", std::to_string(object_.size), std::to_string(*size));
}

}  // namespace twofour
