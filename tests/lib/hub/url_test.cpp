#include "lib/hub/url.h"

#include <doctest/doctest.h>

#include "formats/error.h"
#include "lib/hub/sha256.h"
#include "tests/support/message.h"

namespace url_test {

using namespace twofour;

namespace {

std::string sha256_of(const std::string& text, size_t piece) {
  Sha256 hasher;
  for (size_t at = 0; at < text.size(); at += piece) {
    const std::string part = text.substr(at, piece);
    hasher.update({reinterpret_cast<const uint8_t*>(part.data()), part.size()});
  }
  return hasher.hex();
}

}  // namespace

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

// The first three from FIPS 180-4's examples; all lengths around a block agree however the bytes come.
TEST_CASE("SHA-256 is that of the standard") {
  CHECK(sha256_of("", 1) == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(sha256_of("abc", 3) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(sha256_of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 7) ==
        "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  CHECK(sha256_of(std::string(1'000'000, 'a'), 777) ==
        "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  for (size_t length = 0; length < 200; ++length) {
    const std::string text(length, 'x');
    CHECK(sha256_of(text, 1) == sha256_of(text, 200));
  }
}

}  // namespace url_test
