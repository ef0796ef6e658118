#include "lib/source/config/model_config.h"

#include <doctest/doctest.h>

#include "formats/error.h"

namespace model_config_test {

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

TEST_CASE("the language model's settings are found wherever multimodal models nest its config") {
  for (const char* text : {R"({"text_config": {"a": 5}})", R"({"llm_config": {"a": 5}})",
                           R"({"language_config": {"a": 5}})", R"({"a": null, "llm_config": {"a": 5}})",
                           R"({"a": 5, "text_config": {"a": null}, "llm_config": {"a": 5.0}})",
                           R"({"text_config": null, "llm_config": {"text_config": {"a": 5}}})"}) {
    CAPTURE(text);
    CHECK(model_setting(parse_json("config", text), "a") == 5);
  }
  CHECK(model_setting(parse_json("config", R"({"vision_config": {"a": 5}})"), "a").is_null());
}

TEST_CASE("two settings of one model that differ are refused") {
  const Json config = parse_json("config", R"({"a": "x", "llm_config": {"a": "y"}})");
  CHECK(model_settings(config, "a").size() == 2);
  CHECK_THROWS_WITH_AS(model_setting(config, "a"),
                       "config.json: a: expected one value, found \"x\" and, nested, \"y\"", Error);
}

TEST_CASE("strings are quoted in messages, numbers are not, and what is long is cut") {
  const auto quoted = [](const std::string& text) { return quoted_setting(parse_json("config", text)); };
  CHECK(quoted("\"1.702\"") == "\"1.702\"");
  CHECK(quoted("\"a\\nb\"") == "\"a\\nb\"");
  CHECK(quoted("1.702") == "1.702");
  CHECK(quoted("-3") == "-3");
  CHECK(quoted("true") == "true");
  CHECK(quoted("NaN") == "NaN");
  CHECK(quoted("99999999999999999999") == "99999999999999999999");
  CHECK(quoted("[\"silu\", 1]") == "[\"silu\",1]");
  const std::string numbers(300, '1');
  CHECK(quoted("[" + numbers + "]").size() < 400);
  CHECK(quoted(numbers).ends_with("... (300 bytes)"));
}

TEST_CASE("counts and switches that are not valid are listed, wherever they count") {
  const auto odd = [](const char* text) { return find_odd_settings(parse_json("config", text)); };
  for (const char* fine :
       {"null", "{}", R"({"num_experts": 8, "norm_topk_prob": true, "hidden_size": null})",
        R"({"moe_num_experts": [64, 64], "num_experts_per_tok": 0})",
        R"({"vision_config": {"hidden_size": "x"}, "quantization_config": {"num_experts": "x"}})"})
    CHECK(odd(fine).empty());
  constexpr const char* kCount = "expected a whole number that is not negative, found ";
  for (const auto& [value, shown] : {std::pair{R"("6")", "\"6\""},
                                     {"6.5", "6.5"},
                                     {"6.0", "6.0"},
                                     {"-1", "-1"},
                                     {"true", "true"},
                                     {"NaN", "NaN"},
                                     {"[2, 6.5]", "[2,6.5]"},
                                     {"{}", "{}"}}) {
    for (const std::string key : {"num_experts", "n_routed_experts", "num_experts_per_tok", "hidden_size"}) {
      for (const std::string& text :
           {"{\"" + key + "\": " + value + "}", "{\"text_config\": {\"" + key + "\": " + value + "}}"})
        CHECK(odd(text.c_str()) == std::vector<std::string>{key + ": " + kCount + shown});
    }
  }
  CHECK(odd(R"({"a": {"num_local_experts": "6"}})").size() == 1);
  for (const char* value : {"NaN", "1", "\"false\"", "[]"}) {
    const auto found = odd(("{\"norm_topk_prob\": " + std::string(value) + "}").c_str());
    REQUIRE(found.size() == 1);
    CHECK(found[0].starts_with("norm_topk_prob: expected true or false, found "));
  }
}

}  // namespace model_config_test
