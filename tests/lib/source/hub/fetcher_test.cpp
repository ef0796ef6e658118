#include "lib/source/hub/fetcher.h"

#include <doctest/doctest.h>

#include <atomic>

#include "tests/support/environment.h"
#include "tests/support/hub/http_server.h"
#include "tests/support/message.h"

namespace fetcher_test {

using namespace twofour;

namespace {

constexpr RetryPolicy kQuick{3, std::chrono::milliseconds(1), std::chrono::seconds(5)};

/// A server that is no Hub, and what asks it.
struct Server {
  explicit Server(HttpServer::Handler handler) : http(std::move(handler)) {}
  RemoteObject object(const std::string& name, uint64_t size = 0) const {
    RemoteObject object;
    object.name = object.shown = name;
    object.url = parse_url("x", http.origin() + "/" + name);
    object.size = size;
    return object;
  }
  Fetcher fetcher() const { return Fetcher({parse_url("x", http.origin()), ""}, kQuick); }
  std::string read(uint64_t offset, uint64_t bytes, uint64_t size) const {
    RedirectCache redirects;
    std::string text;
    fetcher().read(object("file", size), redirects, offset, bytes, [&](std::span<const uint8_t> piece) {
      text.append(reinterpret_cast<const char*>(piece.data()), piece.size());
    });
    return text;
  }

  Variable proxy{"no_proxy", "127.0.0.1"};
  HttpServer http;
};

/// An answer that says that it is whole and ends behind `bytes`.
ServerAnswer cut_behind(ServerAnswer answer, size_t bytes) {
  answer.announced = answer.body.size();
  answer.body.resize(std::min(answer.body.size(), bytes));
  answer.closes = true;
  return answer;
}

}  // namespace

TEST_CASE("the size of a file comes from a range, from the whole, or is 0 where there is no first byte") {
  const Server server([](const ServerRequest& request) {
    if (request.path == "/ranges") return answer_range(request, "12345");
    if (request.path == "/empty") return answer_range(request, "");
    ServerAnswer answer;
    if (request.path == "/whole") answer.body = "1234567";
    if (request.path == "/refused") answer.status = 403;
    if (request.path == "/absent") answer.status = 404;
    return answer;
  });
  const auto size_of = [&](const std::string& name) {
    RemoteObject object = server.object(name, 99);
    CHECK(server.fetcher().look_at(object));
    return object.size;
  };
  CHECK(size_of("ranges") == 5);
  CHECK(size_of("whole") == 7);
  CHECK(size_of("empty") == 0);
  RemoteObject absent = server.object("absent"), refused = server.object("refused");
  CHECK_FALSE(server.fetcher().look_at(absent));
  CHECK_FALSE(server.fetcher().look_at(refused, true));
  contains(message_of([&] { server.fetcher().look_at(refused); }),
           "refused: expected its content, found status 403");
}

TEST_CASE("a transfer that breaks goes on as long as each attempt brings bytes, and no longer") {
  std::string contents(1000, '\0');
  for (size_t i = 0; i < contents.size(); ++i) contents[i] = static_cast<char>(i * 7);
  const Server breaks(
      [&](const ServerRequest& request) { return cut_behind(answer_range(request, contents), 100); });
  CHECK(breaks.read(0, 1000, 1000) == contents);
  CHECK(breaks.read(250, 700, 1000) == contents.substr(250, 700));
  const Server stops([&](const ServerRequest& request) {
    const bool is_first = request.field("range").starts_with("bytes=0-");
    return cut_behind(answer_range(request, contents), is_first ? 300 : 0);
  });
  contains(message_of([&] { stops.read(0, 1000, 1000); }), "in 3 attempts; try again later");
}

TEST_CASE("a server that trickles is asked a bounded number of times, and the message says so") {
  const std::string contents(100000, 'x');
  std::atomic<int> asked{0};
  const Server trickles([&](const ServerRequest& request) {
    ++asked;
    return cut_behind(answer_range(request, contents), 10);
  });
  const std::string message = message_of([&] { trickles.read(0, contents.size(), contents.size()); });
  contains(
      message,
      "file: expected its content, found a server that sends it in pieces of fewer than 65536 bytes and then "
      "fails, 12 times in a row (the last time: ");
  contains(message, "; try again later");
  CHECK(asked == 12);
  // A long answer among short ones counts anew.
  asked = 0;
  const std::string more(30 * 65536, 'y');
  const Server recovers([&](const ServerRequest& request) {
    return cut_behind(answer_range(request, more), ++asked % 8 == 0 ? 4 * 65536 : 10);
  });
  CHECK(recovers.read(0, more.size(), more.size()) == more);
}

TEST_CASE("of a server that ignores ranges the first 16 MiB are dropped, and not more") {
  RemoteObject object;
  object.shown = "file";
  object.size = uint64_t{64} << 20;
  std::string text;
  const RangeReceiver::Sink sink = [&](std::span<const uint8_t> piece) {
    text.append(reinterpret_cast<const char*>(piece.data()), piece.size());
  };
  constexpr uint64_t kMost = 16u << 20;
  RangeReceiver last(object, kMost, 3, sink), beyond(object, kMost + 1, 3, sink);
  CHECK(last.head({200, {}}));
  const std::vector<uint8_t> zeros(kMost - 1);
  CHECK(last.body(zeros));
  const std::string rest = "xabcd";
  CHECK_FALSE(last.body({reinterpret_cast<const uint8_t*>(rest.data()), rest.size()}));  // no more is wanted
  CHECK(text == "abc");
  contains(message_of([&] {
             beyond.head({200, {}});
           }),
           "expected a server that answers with ranges of bytes");
}

}  // namespace fetcher_test
