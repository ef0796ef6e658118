#include "lib/source/hub/url.h"

#include <doctest/doctest.h>

#include "formats/error.h"
#include "tests/support/message.h"

namespace url_test {

using namespace twofour;

TEST_CASE("a URL is taken apart, and its secrets are not shown") {
  const Url url = parse_url("x", "HTTPS://Host.example:8443/a/b?X-Signature=secret#part");
  CHECK(url.origin() == "https://host.example:8443");
  CHECK(url.path == "/a/b");
  CHECK(url.query == "?X-Signature=secret");
  CHECK(parse_url("x", "https://h").path == "/");
  for (const char* bad :
       {"ftp://h/a", "https:///a", "h/a", "file:///etc/passwd", "https://h\r\nx/", "https://"})
    CHECK_THROWS_AS(parse_url("x", bad), Error);
  const std::string message = message_of([] { parse_url("x", "https://user:password@h/a"); });
  contains(message, "HF_TOKEN");
  CHECK(message.find("password@") == message.npos);
}

TEST_CASE("a redirect from https leads to https only") {
  const Url https = parse_url("x", "https://h/a/b?q"), http = parse_url("x", "http://h/a/b");
  CHECK(follow(https, "/c?s=1", false).text() == "https://h/c?s=1");
  CHECK(follow(https, "c", false).text() == "https://h/a/c");
  CHECK(follow(https, "//other/c", false).text() == "https://other/c");
  CHECK(follow(https, "https://cdn.example/x", false).origin() == "https://cdn.example");
  for (const bool allowed : {false, true}) {
    contains(message_of([&] { follow(https, "http://h/a", allowed); }), "expected a redirect to https://");
    CHECK_THROWS_AS(follow(https, "file:///etc/passwd", allowed), Error);
    CHECK_THROWS_AS(follow(https, "ftp://h/a", allowed), Error);
  }
  CHECK(follow(http, "http://other/a", true).origin() == "http://other");
  CHECK_THROWS_AS(follow(http, "http://other/a", false), Error);
}

TEST_CASE("bytes that a URL cannot have are written as digits") {
  CHECK(percent_encoded("refs/pr/1", false) == "refs%2Fpr%2F1");
  CHECK(percent_encoded("a b/ä#?%", true) == "a%20b/%C3%A4%23%3F%25");
  CHECK(percent_decoded("x", "refs%2Fpr%2F1") == "refs/pr/1");
  for (const char* bad : {"%", "%1", "%zz", "a%"}) CHECK_THROWS_AS(percent_decoded("x", bad), Error);
}

}  // namespace url_test
