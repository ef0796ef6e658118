#include "formats/json/access.h"

#include <doctest/doctest.h>

namespace json_access_test {

using namespace twofour;

TEST_CASE("what a file of others does not say, or says in another type, is empty") {
  const Json json = parse_json("a", R"({"text": "a", "list": ["a", 1, "b"], "on": true, "n": 4, "half": 0.5,
                                        "pair": [128, 64], "none": null, "inner": {"b": 1, "a": 2}})");
  CHECK(member(json, "n") == 4);
  CHECK(member(json, "missing").is_null());
  CHECK(member(member(json, "missing"), "n").is_null());
  CHECK(member(Json("text"), "n").is_null());

  CHECK(text_of(json, "text") == "a");
  CHECK(text_of(json, "n").empty());
  CHECK(text_of(Json(nullptr)).empty());

  CHECK(strings_of(json, "list") == std::vector<std::string>{"a", "b"});
  CHECK(strings_of(json, "text").empty());

  CHECK(flag_of(json, "on") == true);
  CHECK(flag_of(json, "n") == std::nullopt);
  CHECK(integer_of(json, "n") == 4);
  CHECK(integer_of(json, "half") == std::nullopt);
  CHECK(integer_of(json, "on") == std::nullopt);

  CHECK(pair_of(member(json, "pair")) == std::pair<int64_t, int64_t>(128, 64));
  CHECK(pair_of(member(json, "list")) == std::nullopt);
  CHECK(pair_of(nullptr) == std::nullopt);

  REQUIRE(members_of(json, "inner").size() == 2);
  CHECK(members_of(json, "inner")[0].first == "b");
  CHECK(members_of(json, "list").empty());
  CHECK(members_of(nullptr).empty());
}

}  // namespace json_access_test
