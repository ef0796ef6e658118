#include "lib/model_config.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

using namespace twofour;

TEST_CASE("configs and their settings are found in place, not copied") {
  const Json config = parse_json("config", R"({"a": [1], "text_config": {"b": {"c": 2}}})");
  const auto all = model_configs(config);
  REQUIRE(all.size() == 2);
  CHECK(all[0] == &config);
  CHECK(all[1] == &config["text_config"]);
  CHECK(&model_setting(config, "a") == &config["a"]);
  CHECK(&model_setting(config, "b") == &config["text_config"]["b"]);
  CHECK(model_setting(config, "c").is_null());
  CHECK(model_configs(Json()).empty());
  CHECK(model_setting(Json(), "a").is_null());
}
