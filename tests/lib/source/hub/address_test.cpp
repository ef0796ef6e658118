#include "lib/source/hub/address.h"

#include <doctest/doctest.h>

#include "formats/error.h"
#include "lib/base/io/file.h"
#include "tests/support/environment.h"
#include "tests/support/message.h"
#include "tests/support/scratch.h"

namespace address_test {

using namespace twofour;

namespace {

HubSettings settings_of(const std::string& endpoint) { return {parse_url("x", endpoint), ""}; }

RemoteAddress parse(const std::string& text, const std::string& endpoint = "https://huggingface.co") {
  HubSettings settings = settings_of(endpoint);
  if (settings.endpoint.path == "/") settings.endpoint.path.clear();
  return parse_remote_address(text, settings);
}

}  // namespace

TEST_CASE("an address of the Hub has a repository, a revision and a path") {
  struct Case {
    std::string text, repo, revision, path;
  };
  const std::string hash(40, 'a');
  for (const Case& c : std::vector<Case>{
           {"hf://org/name", "org/name", "main", ""},
           {"hf://org/name/", "org/name", "main", ""},
           {"hf://org/name@v1.0", "org/name", "v1.0", ""},
           {"hf://models/org/name", "org/name", "main", ""},
           {"hf://org/name@" + hash, "org/name", hash, ""},
           {"hf://org/name@refs/pr/7", "org/name", "refs/pr/7", ""},
           {"hf://org/name@refs%2Fpr%2F7/a", "org/name", "refs/pr/7", "a"},
           {"hf://org/name@refs/convert/x/a/b", "org/name", "refs/convert/x", "a/b"},
           {"hf://org/name/sub/model.safetensors", "org/name", "main", "sub/model.safetensors"},
           {"https://huggingface.co/org/name", "org/name", "main", ""},
           {"https://huggingface.co/org/name/tree/v2/sub", "org/name", "v2", "sub"},
           {"https://huggingface.co/org/name/resolve/main/a%20b.safetensors?download=true", "org/name",
            "main", "a b.safetensors"},
           {"https://huggingface.co/org/name/blob/refs/pr/3/x", "org/name", "refs/pr/3", "x"}}) {
    const RemoteAddress a = parse(c.text);
    CHECK_MESSAGE(a.repo == c.repo, c.text);
    CHECK_MESSAGE(a.revision == c.revision, c.text);
    CHECK_MESSAGE(a.path == c.path, c.text);
  }
  CHECK(parse("https://mirror.example/hub/org/name", "https://mirror.example/hub").repo == "org/name");
  // Beside the endpoint's folder, not below it.
  CHECK(parse("https://mirror.example/hubs/org/name", "https://mirror.example/hub").repo.empty());
}

TEST_CASE("any other https URL is a folder or a file of weights") {
  CHECK(parse("https://h/models/x").url.text() == "https://h/models/x/");
  CHECK(parse("https://h/x/").url.text() == "https://h/x/");
  CHECK(parse("https://h/x/m.safetensors?sig=1").url.query == "?sig=1");
  CHECK(parse("https://h/x/").repo.empty());
}

TEST_CASE("what is no address is refused, and http:// but beside an endpoint of http://") {
  for (const char* bad : {"hf://",
                          "hf://name",
                          "hf:///name",
                          "hf://org/",
                          "hf://org/na me",
                          "hf://org/name@",
                          "hf://datasets/org/name",
                          "hf://spaces/org/name",
                          "hf://../name",
                          "hf://org/..",
                          "https://huggingface.co/org",
                          "https://huggingface.co/org/name/discussions/1",
                          "https://huggingface.co/datasets/org/name",
                          "https://h/x?sig=1",
                          "http://h/x",
                          "hf://org/name@.",
                          "hf://org/name@..",
                          "hf://org/name@%2e%2e",
                          "hf://org/name@a..b",
                          "hf://org/name@refs/pr/..",
                          "hf://org/name@a%00",
                          "hf://org/name@a%0Ab",
                          "hf://org/name@a b",
                          "hf://org/name@v1?token=secret",
                          "hf://org/name@v1%3F",
                          "https://huggingface.co/org/name/tree/.."}) {
    CHECK_MESSAGE(!message_of([&] { parse(bad); }).empty(), bad);
  }
  CHECK(parse("http://h/x", "http://127.0.0.1:1").url.host == "h");
  CHECK(is_remote_address("hf://a"));
  CHECK(!is_remote_address("hf:/a"));
  CHECK(!is_remote_address("./https://x"));
  const std::string message = message_of([] { parse("https://h/x?sig=secret"); });
  CHECK(message.find("secret") == message.npos);
}

TEST_CASE("endpoint and token are those of the environment, then of the file that a login wrote") {
  const Scratch scratch;
  const Variable home("HF_HOME", scratch.path.string()), path("HF_TOKEN_PATH", std::nullopt),
      token("HF_TOKEN", std::nullopt), endpoint("HF_ENDPOINT", std::nullopt),
      offline("HF_HUB_OFFLINE", std::nullopt), implicit("HF_HUB_DISABLE_IMPLICIT_TOKEN", std::nullopt);
  CHECK(hub_settings().token.empty());
  CHECK(hub_settings().endpoint.text() == "https://huggingface.co");
  CHECK(!hub_settings().http_allowed());
  write_text(scratch / "token", "hf_file\n");
  CHECK(hub_settings().token == "hf_file");
  write_text(scratch / "other", " hf_other ");
  {
    const Variable elsewhere("HF_TOKEN_PATH", (scratch / "other").string());
    CHECK(hub_settings().token == "hf_other");
  }
  {
    const Variable given("HF_TOKEN", "hf_given");
    CHECK(hub_settings().token == "hf_given");
    const Variable off("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1");
    CHECK(hub_settings().token.empty());
  }
  {
    const Variable off("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1");
    CHECK(hub_settings().token.empty());
  }
  {
    const Variable bad("HF_TOKEN", "hf_a\x01secret");
    const std::string message = message_of([] { hub_settings(); });
    contains(message, "HF_TOKEN: expected a token");
    CHECK(message.find("secret") == message.npos);
  }
  {
    const Variable off("HF_HUB_OFFLINE", "1");
    contains(message_of([] { hub_settings(); }), "HF_HUB_OFFLINE");
  }
  const Variable mirror("HF_ENDPOINT", "http://127.0.0.1:8000/hub/");
  CHECK(hub_settings().endpoint.text() == "http://127.0.0.1:8000/hub");
  CHECK(hub_settings().http_allowed());
}

TEST_CASE("the token goes to the endpoint's scheme, host and port alone") {
  HubSettings settings = settings_of("https://huggingface.co");
  settings.token = "hf_x";
  const auto takes = [&](const char* url) { return settings.takes_token(parse_url("x", url)); };
  CHECK(takes("https://huggingface.co/api/x"));
  CHECK(takes("https://HUGGINGFACE.co/api/x"));
  for (const char* other : {"http://huggingface.co/x", "https://cdn.huggingface.co/x",
                            "https://huggingface.co:444/x", "https://huggingface.co.example/x"}) {
    CHECK_MESSAGE(!takes(other), other);
  }
}

}  // namespace address_test
