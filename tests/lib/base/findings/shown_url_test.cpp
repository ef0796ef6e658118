#include "lib/base/findings/shown_url.h"

#include <doctest/doctest.h>

#include <random>
#include <string>

namespace shown_url_test {

using namespace twofour;

TEST_CASE("a URL is shown without query, fragment, user and password") {
  CHECK(shown_url("https://h/a?X-Signature=secret") == "https://h/a");
  CHECK(shown_url("https://h/a#secret") == "https://h/a");
  CHECK(shown_url("https://h?secret") == "https://h");
  CHECK(shown_url("https://h?secret#://x") == "https://h");
  CHECK(shown_url("https://user:password@h/a@b") == "https://h/a@b");
  CHECK(shown_url("https://user:pass@word@h:8443/a?s") == "https://h:8443/a");
  CHECK(shown_url("s3://key:secret@bucket/a?secret") == "s3://bucket/a");
}

TEST_CASE("what is almost a URL is shown without its secrets, too") {
  CHECK(shown_url("https:/h/a?secret") == "https:/h/a");
  CHECK(shown_url("user:password@h/a?secret") == "h/a");
  CHECK(with_shown_urls("r.yaml: line 2: found \"https://u:p@h/a?secret\"") ==
        "r.yaml: line 2: found \"https://h/a\"");
  CHECK(with_shown_urls("https://h/a#2: no") == "https://h/a#2: no");
  CHECK(with_shown_urls("https://h/a#secret no") == "https://h/a no");
}

TEST_CASE("a URL without its slashes is found, and a pattern is none") {
  CHECK(with_shown_urls("https:host?sig=S") == "https:host");
  CHECK(with_shown_urls("no file HTTP:host/a?S, nor b") == "no file HTTP:host/a nor b");
  CHECK(with_shown_urls("blob:store/a?X-Signature=S\n") == "blob:store/a\n");
  CHECK(with_shown_urls("https:h?sig=S&to=https://h/a?sig=S") == "https:h");
  for (const char* text : {"re:.*mlp(?:up|gate)?a=b", "config.json: num_experts: expected 8?", "a:b?",
                           "x:?=1", "https: no", "C:?a=b", "model:0?.weight"})
    CHECK(with_shown_urls(text) == text);
}

TEST_CASE("what is no secret of a URL stays") {
  for (const char* url : {"https://h/a@b", "https://h:8443/org/name@main/x", "https://[::1]:80/a@b",
                          "https://[::1]/a@b", "hf://org/name@refs/pr/1", "https://", "a/b", "C:/models", ""})
    CHECK(shown_url(url) == url);
}

TEST_CASE("where a password cannot be told apart from the host, the scheme alone is shown") {
  for (const char* url : {"https://user:pass/word@h/a", "https://us?er:password@h/a", "https://user:p?w@h",
                          "https://user:p#w@h/a", "https://u:/p@h"})
    CHECK_MESSAGE(shown_url(url) == "https://", url);
}

TEST_CASE("no secret is shown wherever marks are in it and around it") {
  std::mt19937 random(7);
  const std::string marks = "/?#@:=&ab1";
  const auto some = [&](size_t most) {
    std::string text;
    for (size_t i = random() % (most + 1); i > 0; --i) text += marks[random() % marks.size()];
    return text;
  };
  for (int i = 0; i < 20'000; ++i) {
    const std::string query = "https://h/p?" + some(4) + "SECRET" + some(6);
    CHECK_MESSAGE(shown_url(query).find("SECRET") == std::string::npos, query);
    // A password may have any byte but a slash in front of the '@' that ends it.
    std::string password = some(4) + "SECRET" + some(4);
    std::erase(password, '/');
    const std::string login = "https://user:" + password + "@h/p";
    CHECK_MESSAGE(shown_url(login).find("SECRET") == std::string::npos, login);
  }
}

TEST_CASE("URLs in a text are shown alike, and the rest stays") {
  CHECK(with_shown_urls("no access to https://h/a?s=1 or 'http://u:p@h/b?x' (403?)") ==
        "no access to https://h/a or 'http://h/b' (403?)");
  CHECK(with_shown_urls("a? b# c@d ://x?y") == "a? b# c@d ://x?y");
  CHECK(find_url("--stats=https://h/a") == 8);
  CHECK(find_url("from s3://h") == 5);
  CHECK(find_url("://h") == std::string_view::npos);
}

}  // namespace shown_url_test
