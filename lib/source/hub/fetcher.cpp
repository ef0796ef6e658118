#include "lib/source/hub/fetcher.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <thread>
#include <utility>

#include "formats/error.h"
#include "formats/json.h"
#include "lib/base/findings/shown_url.h"
#include "lib/base/findings/version.h"
#include "lib/base/threads/interrupt.h"

namespace twofour {
namespace {

using std::chrono::milliseconds, std::chrono::seconds;

constexpr int kMostRedirects = 5;
/// The age at which a redirect is forgotten. The Hub signs URLs of its storage for an hour.
constexpr std::chrono::minutes kRedirectAge{10};
/// A temporary failure of a request.
struct Passing {
  std::string what;
  std::optional<seconds> retry_after{};
};

bool is_redirect(int status) {
  return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}
bool is_passing(int status) { return status == 408 || status == 425 || status == 429 || status >= 500; }
bool is_refused(int status) { return status == 401 || status == 403 || status == 404 || status == 410; }

/// Passes the final answer on. Keeps only the location of a redirect.
class RedirectReceiver : public HttpReceiver {
 public:
  using Look = std::function<void(const HttpHead&)>;
  RedirectReceiver(const Url& from, HttpReceiver& to, const Look& look) : from_(from), to_(to), look_(look) {}
  bool head(const HttpHead& head) override {
    if (!is_redirect(head.status)) return to_.head(head);
    location = head.field("location");
    if (location->empty())
      throw Error(
          fmt::format("{}: expected a field Location in a redirect, found none", shown_url(from_.text())));
    look_(head);
    return false;
  }
  bool body(std::span<const uint8_t> piece) override { return to_.body(piece); }

  std::optional<std::string> location;

 private:
  const Url& from_;
  HttpReceiver& to_;
  const Look& look_;
};

/// Requests `url` and follows redirects. Returns the last URL.
Url request(const HubSettings& settings, Url url, const std::vector<std::string>& fields,
            HttpReceiver& receiver, const RedirectReceiver::Look& look) {
  for (int i = 0; i <= kMostRedirects; ++i) {
    HttpRequest one{url.text(), fields};
    one.fields.push_back("Accept-Encoding: identity");
    one.fields.push_back(fmt::format("User-Agent: twofour/{}", version()));
    if (settings.takes_token(url)) one.fields.push_back("Authorization: Bearer " + settings.token);
    RedirectReceiver hop(url, receiver, look);
    http_get(one, hop);
    if (!hop.location) return url;
    url = follow(url, *hop.location, settings.http_allowed());
  }
  throw Error(
      fmt::format("{}: expected at most {} redirects, found more", shown_url(url.text()), kMostRedirects));
}

/// Returns the repository in "hf://org/name@revision/path".
std::string_view repo_of(std::string_view shown) {
  if (!shown.starts_with("hf://")) return {};
  shown.remove_prefix(5);
  return shown.substr(0, shown.find('@'));
}

/// True if a text contains a value of a URL's query, which may be a signature. Values of up to three
/// characters are ignored.
bool repeats(std::string_view text, std::string_view query) {
  while (!query.empty()) {
    const size_t end = std::min(query.find_first_of("?&"), query.size());
    const std::string_view field = query.substr(0, end);
    const std::string_view value = field.substr(field.find('=') + 1);
    if (value.size() > 3 && text.find(value) != text.npos) return true;
    query.remove_prefix(std::min(end + 1, query.size()));
  }
  return false;
}

/// Returns the server's message about its refusal. Empty if it contains secrets from the URLs of the request.
std::string message_of(const HttpHead& head, std::initializer_list<Url> asked) {
  const std::string message = with_shown_urls(head.field("x-error-message"));
  for (const Url& url : asked) {
    if (repeats(message, url.query)) return {};
  }
  return message;
}

/// Throws Error that states the meaning of an answer without content, and the remedy. `asked` are the URLs of
/// the request and its redirects.
[[noreturn]] void refuse(const HubSettings& settings, const std::string& what, const HttpHead& head,
                         std::initializer_list<Url> asked) {
  const std::string code = head.field("x-error-code");
  const std::string_view repo = repo_of(what);
  const std::string access = settings.token.empty() ? "set HF_TOKEN to a token of an account that can read it"
                                                    : "the account of the token that is set cannot read it";
  if (code == "GatedRepo") {
    throw Error(
        fmt::format("{}: expected access, found a gated repository ({}): accept its terms at {}/{}, and {}",
                    what, head.status, settings.endpoint.text(), repo, access));
  }
  if (code == "RevisionNotFound")
    throw Error(fmt::format("{}: expected a branch, tag or commit of that name, found none", what));
  if (code == "EntryNotFound") throw Error(fmt::format("{}: expected a file, found none", what));
  if (!repo.empty() && (head.status == 401 || code == "RepoNotFound")) {
    throw Error(fmt::format(
        "{}: expected a repository that can be read, found none ({}): its name is wrong, or it is private or "
        "gated: {}",
        what, head.status, access));
  }
  const std::string message = message_of(head, asked);
  throw Error(fmt::format("{}: expected its content, found status {}{}{}", what, head.status,
                          message.empty() ? "" : ": " + json_quote_short(message),
                          head.status == 401 || head.status == 403 ? "; " + access : ""));
}

Passing passing(const HttpHead& head) {
  Passing failure{fmt::format("status {}", head.status)};
  if (const auto wait = number_of(head.field("retry-after"))) {
    failure.retry_after = seconds(std::min<uint64_t>(*wait, 1u << 20));
  }
  return failure;
}

void wait_for(milliseconds time) {
  constexpr milliseconds kStep{50};
  for (; time.count() > 0; time -= kStep) {
    check_interrupt();
    std::this_thread::sleep_for(std::min(time, kStep));
  }
}

/// Calls `attempt` until it succeeds. It then returns nothing. `progress` is the number of received bytes.
/// Failures are counted from 0 after each received byte, and short answers after a long one.
template <class Attempt>
void repeat(const RetryPolicy& policy, const std::string& what, const uint64_t& progress, Attempt&& attempt) {
  uint64_t before = progress;
  for (int failures = 0, short_answers = 0;;) {
    std::optional<Passing> failure;
    try {
      failure = attempt();
    } catch (const ConnectionError& e) {
      failure = Passing{e.what()};
    }
    if (!failure) return;
    const uint64_t received = progress - before;
    failures = received == 0 ? failures + 1 : 1;
    short_answers = received < policy.short_bytes ? short_answers + 1 : 0;
    before = progress;
    if (failures >= policy.attempts) {
      throw Error(fmt::format("{}: expected an answer, found {} in {} attempts; try again later", what,
                              failure->what, failures));
    }
    if (short_answers >= policy.short_attempts) {
      throw Error(
          fmt::format("{}: expected its content, found a server that sends it in pieces of fewer than {} "
                      "bytes and then fails, {} "
                      "times in a row (the last time: {}); try again later",
                      what, policy.short_bytes, short_answers, failure->what));
    }
    if (failure->retry_after && *failure->retry_after > policy.longest_retry_after) {
      throw Error(fmt::format("{}: expected an answer, found {} and a server that asks to wait for {} s",
                              what, failure->what, failure->retry_after->count()));
    }
    wait_for(failure->retry_after ? milliseconds(*failure->retry_after)
                                  : policy.first_wait * (1 << std::min(failures - 1, 10)));
  }
}

/// Collects the body of a small answer.
class TextReceiver : public HttpReceiver {
 public:
  TextReceiver(const std::string& what, uint64_t limit) : what_(what), limit_(limit) {}
  bool head(const HttpHead& head) override {
    answer = head;
    return head.status == 200;
  }
  bool body(std::span<const uint8_t> piece) override {
    if (text.size() + piece.size() > limit_)
      throw Error(fmt::format("{}: expected at most {} bytes, found more", what_, limit_));
    text.append(reinterpret_cast<const char*>(piece.data()), piece.size());
    return true;
  }
  HttpHead answer;
  std::string text;

 private:
  const std::string& what_;
  const uint64_t limit_;
};

/// Receives only the head of an answer.
class HeadReceiver : public HttpReceiver {
 public:
  bool head(const HttpHead& head) override {
    answer = head;
    return false;
  }
  bool body(std::span<const uint8_t>) override { return false; }
  HttpHead answer;
};

/// Returns the size of a file from the answer to a request for its first byte. Empty if the answer does not
/// state it.
std::optional<uint64_t> size_of_file(const HttpHead& head) {
  if (head.status == 416) return 0;  // the file has no first byte
  if (head.status == 200) return number_of(head.field("content-length"));
  const auto range = parse_content_range(head.field("content-range"));
  return range ? range->total : std::nullopt;
}

/// Checks that an answer is of the contents that were listed, then passes it on.
class CheckedReceiver : public HttpReceiver {
 public:
  CheckedReceiver(RangeReceiver& to, const RemoteObject& object, RedirectCache& redirects, Url from)
      : at(std::move(from)), to_(to), object_(object), redirects_(redirects) {}
  bool head(const HttpHead& head) override {
    if (head.status == 200 || head.status == 206) check(head);
    return to_.head(head);
  }
  bool body(std::span<const uint8_t> piece) override { return to_.body(piece); }

  Url at;  ///< the URL after the redirects so far

 private:
  void check(const HttpHead& head) const {
    if (at.origin() == object_.url.origin() || object_.commit.empty())
      return check_contents(object_, head, false);
    const std::string etag = normalized_etag(head.field("etag"));
    if (!redirects_.is_same_content(at, etag))
      refuse_change(object_, "at its storage an ETag as", "before", etag);
  }

  RangeReceiver& to_;
  const RemoteObject& object_;
  RedirectCache& redirects_;
};

}  // namespace

std::string RedirectCache::find() const {
  const std::lock_guard lock(mutex_);
  return std::chrono::steady_clock::now() - since_ < kRedirectAge ? url_ : "";
}

void RedirectCache::keep(const Url& url) {
  const std::lock_guard lock(mutex_);
  if (url_ == url.text()) return;
  url_ = url.text();
  since_ = std::chrono::steady_clock::now();
}

void RedirectCache::forget() {
  const std::lock_guard lock(mutex_);
  url_.clear();
}

bool RedirectCache::is_same_content(const Url& url, const std::string& etag) {
  if (etag.empty()) return true;
  const std::lock_guard lock(mutex_);
  return etags_.try_emplace(shown_url(url.text()), etag).first->second == etag;
}

Fetcher::Fetcher(HubSettings settings, RetryPolicy policy)
    : settings_(std::move(settings)), policy_(policy) {}

std::string Fetcher::get_text(const Url& url, const std::string& what, uint64_t limit) const {
  std::string text;
  const uint64_t none = 0;
  repeat(policy_, what, none, [&]() -> std::optional<Passing> {
    TextReceiver receiver(what, limit);
    const Url last = request(settings_, url, {}, receiver, [](const HttpHead&) {});
    if (is_passing(receiver.answer.status)) return passing(receiver.answer);
    if (receiver.answer.status != 200) refuse(settings_, what, receiver.answer, {url, last});
    text = std::move(receiver.text);
    return std::nullopt;
  });
  return text;
}

bool Fetcher::look_at(RemoteObject& object, bool optional) const {
  bool is_there = true;
  const uint64_t none = 0;
  repeat(policy_, object.shown, none, [&]() -> std::optional<Passing> {
    HeadReceiver receiver;
    // A URL that is signed for GET refuses HEAD.
    const Url last = request(settings_, object.url, {"Range: bytes=0-0"}, receiver, [](const HttpHead&) {});
    const HttpHead& head = receiver.answer;
    if (is_passing(head.status)) return passing(head);
    is_there = head.status != 404 && head.status != 410 && !(optional && head.status == 403);
    if (!is_there) return std::nullopt;
    if (head.status != 206 && head.status != 200 && head.status != 416)
      refuse(settings_, object.shown, head, {object.url, last});
    const std::optional<uint64_t> size = size_of_file(head);
    if (!size)
      throw Error(fmt::format("{}: expected an answer with the file's size, found none", object.shown));
    object.size = *size;
    object.etag = normalized_etag(head.field("etag"));
    object.modified = head.field("last-modified");
    return std::nullopt;
  });
  return is_there;
}

void Fetcher::read(const RemoteObject& object, RedirectCache& redirects, uint64_t offset, uint64_t bytes,
                   const std::function<void(std::span<const uint8_t>)>& sink) const {
  if (bytes == 0) return;
  uint64_t done = 0;
  const std::function<void(std::span<const uint8_t>)> count = [&](std::span<const uint8_t> piece) {
    sink(piece);
    done += piece.size();
  };
  repeat(policy_, object.shown, done, [&]() -> std::optional<Passing> {
    const std::string known = redirects.find();
    const Url first = known.empty() ? object.url : parse_url(object.shown, known);
    RangeReceiver receiver(object, offset + done, bytes - done, count);
    CheckedReceiver checked(receiver, object, redirects, first);
    const std::string range = fmt::format("Range: bytes={}-{}", offset + done, offset + bytes - 1);
    const Url last = request(settings_, first, {range}, checked, [&](const HttpHead& head) {
      check_contents(object, head, true);
      checked.at = follow(checked.at, head.field("location"), settings_.http_allowed());
    });
    const int status = receiver.answer.status;
    if (status == 200 || status == 206) {
      if (last.origin() != object.url.origin()) redirects.keep(last);
      if (receiver.left() == 0) return std::nullopt;
      return Passing{fmt::format("an answer that ended {} bytes early", receiver.left())};
    }
    if (!known.empty() && is_refused(status)) {  // the URL's signature has expired
      redirects.forget();
      return Passing{fmt::format("status {}", status), seconds(0)};
    }
    if (is_passing(status)) {
      redirects.forget();
      return passing(receiver.answer);
    }
    if (status == 416) refuse_change(object, "a size of", std::to_string(object.size), "less");
    refuse(settings_, object.shown, receiver.answer, {object.url, last});
  });
}

}  // namespace twofour
