#include "lib/base/findings/given_urls.h"

#include <doctest/doctest.h>

#include <vector>

namespace given_urls_test {

using namespace twofour;

TEST_CASE("words of a command line lose what URLs keep secret, and RemoteSource alone finds it") {
  const std::vector<std::string> given = {"twofour",
                                          "inspect",
                                          "https://h/m.safetensors?sig=secret",
                                          "--stats=s3://user:secret@h/s",
                                          "from https://h/x#secret",
                                          "hf://org/name@main",
                                          "--tensor",
                                          "model.*?.weight",
                                          "a@b#c",
                                          "https:host?sig=secret",
                                          "--against=store:a/b?key=secret"};
  std::vector<std::string> words = given;
  {
    const GivenUrls urls(words);
    CHECK(words == std::vector<std::string>{"twofour", "inspect", "https://h/m.safetensors",
                                            "--stats=s3://h/s", "from https://h/x", "hf://org/name@main",
                                            "--tensor", "model.*?.weight", "a@b#c", "https:host",
                                            "--against=store:a/b"});
    CHECK(whole_url("https://h/m.safetensors") == "https://h/m.safetensors?sig=secret");
    CHECK(whole_url("hf://org/name@main") == "hf://org/name@main");
    CHECK(whole_url("https://h/other") == "https://h/other");
    for (size_t i = 0; i < words.size(); ++i) CHECK(word_as_given(words[i]) == given[i]);
  }
  CHECK(whole_url("https://h/m.safetensors") == "https://h/m.safetensors");
}

TEST_CASE("two URLs that differ in what is not shown stay two") {
  std::vector<std::string> words = {"https://h/m?v=1", "https://h/m?v=2", "https://h/m", "https://h/m?v=1",
                                    "https://h/m#2"};
  const std::vector<std::string> given = words;
  const GivenUrls urls(words);
  CHECK(words[0] == "https://h/m");
  CHECK(words[1] == "https://h/m#2");
  CHECK(words[3] == words[0]);
  for (size_t i = 0; i < words.size(); ++i) CHECK(whole_url(words[i]) == given[i]);
}

}  // namespace given_urls_test
