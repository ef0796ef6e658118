#include "lib/look/inspect/model_card.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <string>

#include "formats/error.h"
#include "lib/base/io/file.h"
#include "lib/recipe/artifact/yaml.h"
#include "lib/synth/synth.h"
#include "tests/support/conversion.h"
#include "tests/support/message.h"
#include "tests/support/scratch.h"

namespace model_card_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;

/// An artifact in v7, of a checkpoint that may have a README.md.
struct Artifact {
  explicit Artifact(const std::string& readme = {}) {
    SynthOptions options;
    options.shape = "tiny";
    Progress progress;
    synth(scratch / "source", options, progress);
    if (!readme.empty()) write_text(scratch / "source/README.md", readme);
    convert(scratch / "source", path);
  }
  Scratch scratch;
  fs::path path = scratch / "artifact";
};

/// The front matter of a card, by key.
YamlNode front_matter(const std::string& card) {
  REQUIRE(card.starts_with("---\n"));
  return parse_yaml("card", card.substr(4, card.find("\n---\n", 3) - 3));
}

std::string value(const YamlNode& map, const std::string& key) {
  for (size_t i = 0; i < map.keys.size(); ++i) {
    if (map.keys[i].text == key) return map.items[i].text;
  }
  return "(none)";
}

}  // namespace

TEST_CASE("names are in a card's front matter as they are, whatever they hold") {
  const Artifact artifact;
  for (const std::string name : {"org/model", "yes", "1.0", "a: b", "- a", "'\"\\", "a\n---\nlicense: mit",
                                 "# a", "{a}", "\ta", "é", "&a *b", "| x |", "a\xC2\x85z", "\xC2\x9F",
                                 "a\xE2\x80\xA8z", "\xEF\xBB\xBFz", "a\xEF\xBF\xBEz", "\xF0\x9F\x98\x80"}) {
    CAPTURE(name);
    const std::string card = model_card(artifact.path, {name, name + "!"});
    const YamlNode found = front_matter(card);
    CHECK(value(found, "base_model") == name);
    CHECK(value(found, "base_model_relation") == "quantized");
    CHECK(value(found, "quantized_by") == name + "!");
    CHECK(value(found, "license") == "(none)");
    CHECK(card.find("\nlicense:") == card.npos);
    const std::string front = card.substr(0, card.find("\n---\n", 3));
    CHECK(std::all_of(front.begin(), front.end(), [](char c) { return c == '\n' || (c >= ' ' && c < 127); }));
  }
  CHECK(contains(model_card(artifact.path, {"a\x7Fz", ""}), "base_model: \"a\\x7Fz\"\n"));
  const YamlNode found = front_matter(model_card(artifact.path, {}));
  CHECK(value(found, "base_model") == "(none)");
  CHECK(value(found, "base_model_relation") == "(none)");
  CHECK(value(found, "quantized_by") == "(none)");
}

TEST_CASE("a card's tags are those of what was made") {
  const Artifact artifact;
  const YamlNode found = front_matter(model_card(artifact.path, {}));
  REQUIRE(found.keys.back().text == "tags");
  std::string tags;
  for (const YamlNode& tag : found.items.back().items) tags += tag.text + " ";
  CHECK(tags == "nvfp4 twofour v7 ");
}

TEST_CASE("a card states the license of the source's README.md, and none that it cannot read") {
  const auto license = [](const std::string& readme) {
    const YamlNode found = front_matter(model_card(Artifact(readme).path, {}));
    return value(found, "license") + " " + value(found, "license_name");
  };
  CHECK(license("---\nlanguage: en\nlicense: apache-2.0\n---\n# A\n") == "apache-2.0 (none)");
  CHECK(license("---\r\nlicense: mit\r\nlanguage: en\r\n---\r\n# A\r\n") == "mit (none)");
  CHECK(license("---\nlicense: 'other'\nlicense_name: \"a: b\"\n---\n") == "other a: b");
  CHECK(license("---\nlicense: other # as before\n---\n") == "other (none)");
  CHECK(license("---\nlanguage: en\n---\nlicense: mit\n") == "(none) (none)");
  CHECK(license("license: mit\n") == "(none) (none)");
  CHECK(license("---\nlicense: mit\n") == "(none) (none)");
  CHECK(license("---\nlicense: [mit]\n---\n") == "(none) (none)");
  CHECK(license("---\nlicense: *x\n---\n") == "(none) (none)");
}

TEST_CASE("a card has the figures and hashes of twofour.json") {
  const Artifact artifact;
  const std::string card = model_card(artifact.path, {"org/tiny", ""});
  const Json json = Json::parse(read_text(artifact.path / "twofour.json"));
  std::vector<double> errors;
  for (const Json& module : json["modules"])
    errors.push_back(module["quality"]["relative_error"].get<double>());
  REQUIRE(errors.size() == 4);
  std::sort(errors.begin(), errors.end());
  const auto percent = [](double x) { return std::to_string(100 * x).substr(0, 5); };
  CHECK(contains(card, "| `v7` | relative error | 4 | " + percent(errors[0])));
  CHECK(contains(card, "# tiny: v7\n"));
  CHECK(contains(card, "4 matrices in `v7`"));
  for (const auto& [name, hash] : json["files"].items())
    CHECK(contains(card, "| `" + name + "` | `" + hash.get<std::string>() + "` |"));
  CHECK(contains(card, json["manifest_xxh3_128"].get<std::string>()));
  CHECK(contains(card, json["source"]["content_xxh3_128"].get<std::string>()));
  CHECK(contains(card, "\n{\"to\":\"v7\",\"fold\":\"larger\"}\n"));
}

TEST_CASE("a card says how transformers and vLLM load a layout, by modules that there are") {
  const Artifact artifact;
  const std::string card = model_card(artifact.path, {});
  CHECK(contains(card, "import twofour.integrations.transformers\n"));
  CHECK(contains(card, "vLLM finds the module where it is installed"));
  for (const char* module : {"transformers.py", "vllm.py"})
    CHECK(fs::exists(fs::path(TWOFOUR_SOURCE_DIR) / "tools/python/twofour/integrations" / module));
  OneRule back;
  back.to = "nvfp4";
  convert(artifact.path, artifact.scratch / "back", back);
  const std::string engines = model_card(artifact.scratch / "back", {});
  CHECK(contains(engines, "vllm serve PATH"));
  CHECK(engines.find("integrations") == engines.npos);
}

TEST_CASE("what is no artifact, or has another twofour.json than was written, has no card") {
  Artifact artifact;
  CHECK_THROWS_WITH_AS(model_card(artifact.scratch / "source", {}),
                       doctest::Contains("expected a twofour artifact, found no twofour.json"), Error);
  const fs::path manifest = artifact.path / "twofour.json";
  std::string text = read_text(manifest);
  text.replace(text.find("\"0."), 3, "\"1.");
  write_text(manifest, text);
  CHECK_THROWS_WITH_AS(model_card(artifact.path, {}), doctest::Contains("the hash of the text before it"),
                       Error);
  write_text(manifest, "{}");
  CHECK_THROWS_AS(model_card(artifact.path, {}), Error);
}

}  // namespace model_card_test
