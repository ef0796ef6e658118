#include <doctest/doctest.h>
#include <fmt/format.h>

#include <string>

#include "lib/base/findings/version.h"
#include "lib/base/io/file.h"
#include "lib/lint/lint.h"
#include "lib/look/inspect/model_card.h"
#include "lib/recipe/artifact/manifest.h"
#include "lib/recipe/artifact/open_unpacked.h"
#include "tests/support/conversion.h"
#include "tests/support/message.h"
#include "tests/support/scratch.h"

/// Words of recipes in twofour.json: what is written is read, and what is not known is refused.

namespace recipe_words_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;

/// A level of a manifest of 0.2.0, as the text that begins it.
struct Level {
  std::string artifact, begin, path;
};
const std::vector<Level> kLevels = {
    {"v7", "\"recipe\": {", "recipe"},
    {"v7", "\"rules\":[{", "recipe.rules[0]"},
    {"recipe-mixed", "},{\"to\":\"quantize\",", "recipe.rules[1]"},
    {"quantize-kept-scales", "\"kept_global_scales\":{", "recipe.rules[0].kept_global_scales"},
    {"quantize-input-scales", "\"input_scales\":{", "recipe.rules[0].input_scales"},
    {"graft", "\"edit\":{", "recipe.edit"},
    {"graft", "\"graft\":{", "recipe.edit.graft"},
    {"graft", "\"base\": {", "source.base"},
    {"drop", "\"edit\":{", "recipe.edit"},
    {"drop", "\"drop\":{", "recipe.edit.drop"},
    {"drop-experts", "\"drop\":{", "recipe.edit.drop"},
};

fs::path golden(const std::string& artifact) {
  return fs::path(TWOFOUR_GOLDEN_DIR) / "artifacts/0.2.0" / artifact;
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  REQUIRE(at != text.npos);
  return text.replace(at, from.size(), to);
}

/// A copy of an artifact of 0.2.0 with a manifest of another format.
struct Changed {
  Scratch scratch;
  fs::path artifact = scratch / "artifact", manifest = artifact / kManifestName;
  std::string text;  ///< of the manifest
  Changed(const std::string& name, int format) {
    fs::copy(golden(name), artifact, fs::copy_options::recursive);
    text = replaced(read_text(manifest), "\"format\": 3", fmt::format("\"format\": {}", format));
  }
  Recipe read(const std::string& changed) const {
    write_sealed(manifest, changed);
    return read_manifest(manifest, 1000).recipe;
  }
};

std::string with_key(const Level& level, const std::string& text) {
  return replaced(text, level.begin, replaced(level.begin, "{", "{\"later\":{\"a\":1},"));
}

std::string line(const Recipe& recipe) { return json_line(recipe_to_json(recipe)); }

/// A recipe with every word that there is.
Recipe full_recipe() {
  Rule rule;
  rule.to = "a";
  rule.selection = {.include = parse_patterns({"b*"}),
                    .exclude = parse_patterns({"re:c", "d"}),
                    .also = parse_patterns({"e"}),
                    .from_default = false,
                    .roles = {ModuleRole::kRoutedExperts, ModuleRole::kMtp},
                    .draft_experts = DraftExperts::kCast};
  rule.fold = Fold::kAny;
  rule.pattern = "4:8-paired", rule.dialect = "g", rule.granularity = "row", rule.block = "1x128";
  rule.scale_dtype = "e8m0", rule.odd_blocks = "keep", rule.exact = "best", rule.arithmetic = "modelopt";
  rule.block_scale = "mse", rule.zero_block = "zero", rule.method = "rtn", rule.sweeps = 0;
  rule.shrink = 0.25, rule.scale_search = 3;
  rule.statistics_hash = "q", rule.statistics_from = "r", rule.statistics_input = "s", rule.mask_hash = "t";
  rule.kept = {.divides = true, .scales = {{"u", 0x3f800000}, {"v", 0x00000001}}};
  rule.input_scale = "given";
  rule.input_scales = {.divides = false, .scales = {{"x", 0x3f800001}}};
  rule.one_input_scale_a_layer = true;
  Recipe recipe(rule, 12345);
  recipe.rules.emplace_back();
  recipe.dialect = "y";
  recipe.edit = {.kind = Edit::Kind::kDropExperts, .experts = {{"z", {0, 7}}}};
  return recipe;
}

}  // namespace

TEST_CASE("every word of a recipe is written in its order, and read as it was written") {
  const std::string text =
      R"({"rules":[{"to":"a","include":["b*"],"exclude":["re:c","d"],"also":["e"],"fold":"any",)"
      R"("pattern":"4:8-paired","dialect":"g","granularity":"row","block":"1x128","scale_dtype":"e8m0",)"
      R"("odd_blocks":"keep","exact":"best","arithmetic":"modelopt","block_scale":"mse",)"
      R"("zero_block":"zero","method":"rtn","sweeps":0,"shrink":0.25,"scale_search":3,)"
      R"("statistics_xxh3_128":"q","statistics_from":"r","statistics_input_xxh3_128":"s",)"
      R"("masks_xxh3_128":"t","kept_global_scales":{"divides":true,"bits":{"u":"3f800000","v":"00000001"}},)"
      R"("input_scale":"given","input_scales":{"divides":false,"bits":{"x":"3f800001"}},)"
      R"("one_input_scale_a_layer":true,"from_default":false,"draft_experts":"cast",)"
      R"("roles":["experts","mtp"]},{"to":"v7","include":[],"exclude":[],"also":[],"fold":"larger"}],)"
      R"("max_shard_size":12345,"dialect":"y","edit":{"drop":{"experts":{"z":[0,7]}}}})";
  CHECK(line(full_recipe()) == text);
  for (const UnknownKeys unknown : {UnknownKeys::kRefuse, UnknownKeys::kIgnore})
    CHECK(line(recipe_from_json("r", Json::parse(text), unknown)) == text);
  for (const char* edit : {R"({"graft":{"take":["mtp","*.a"]}})", R"({"drop":{"modules":["head"]}})"}) {
    const std::string recipe = fmt::format(R"({{"rules":[],"max_shard_size":1,"edit":{}}})", edit);
    CHECK(line(recipe_from_json("r", Json::parse(recipe))) == recipe);
  }
}

TEST_CASE("a key that is not known is refused from format 4 on, at every level that decides bytes") {
  for (const Level& level : kLevels) {
    CAPTURE(level.artifact);
    CAPTURE(level.path);
    const std::string recipe = line(read_manifest(golden(level.artifact) / kManifestName, 1000).recipe);
    const Changed older(level.artifact, 3), newer(level.artifact, 4);
    CHECK(line(older.read(with_key(level, older.text))) == recipe);
    CHECK(line(newer.read(newer.text)) == recipe);
    CHECK(message_of([&] { newer.read(with_key(level, newer.text)); }) ==
          fmt::format("{}: {}: expected keys that twofour {} knows, found \"later\": a newer twofour wrote "
                      "it; use that version",
                      newer.manifest.string(), level.path, version()));
    // Of a file that was damaged no key says anything.
    write_text(newer.manifest, with_key(level, newer.text));
    const Manifest damaged = read_manifest(newer.manifest, 1000);
    CHECK(!damaged.integrity_error.empty());
    CHECK(line(damaged.recipe) == recipe);
  }
}

TEST_CASE("every reader of a manifest refuses what it does not know") {
  const Changed changed("v7", 4);
  write_sealed(changed.manifest, with_key(kLevels[1], changed.text));
  const std::string refusal = "recipe.rules[0]: expected keys that twofour";
  const fs::path& artifact = changed.artifact;
  const fs::path source = fs::path(TWOFOUR_GOLDEN_DIR) / "artifacts/source/modelopt";
  Progress progress;
  CHECK(contains(message_of([&] { open_source(artifact); }), refusal));
  CHECK(contains(message_of([&] { validate(artifact); }), refusal));
  CHECK(contains(message_of([&] { validate_from(source, artifact); }), refusal));
  CHECK(contains(message_of([&] { model_card(artifact, {}); }), refusal));
  CHECK(contains(message_of([&] { check_tensor_hashes(artifact, "", progress); }), refusal));
  CHECK(
      contains(message_of([&] { convert(source, artifact, {}, {.existing = Existing::kResume}); }), refusal));
  const LintReport linted = lint(artifact, {}, progress);
  std::string found;
  for (const LintFinding& f : linted.findings)
    found += fmt::format("{}: {}\n", lint_rules()[f.rule].id, f.message);
  CHECK(contains(found, "bad-manifest: "));
  CHECK(contains(found, refusal));
}

TEST_CASE("words of a known key that are not known are refused, whatever the format") {
  for (const int format : {3, 4}) {
    CAPTURE(format);
    const Changed changed("recipe-layouts", format);
    const auto refusal = [&](const std::string& from, const std::string& to) {
      return message_of([&] { changed.read(replaced(changed.text, from, to)); });
    };
    CHECK(contains(refusal("\"fold\":\"strict\"", "\"fold\":\"mean\""),
                   "recipe.rules[0].fold: expected larger, strict or any, found \"mean\""));
    CHECK(contains(refusal("\"roles\":[\"experts\"]", "\"roles\":[\"shards\"]"),
                   "recipe.rules[1].roles: expected a role of modules, found \"shards\""));
    CHECK(contains(refusal("\"roles\":", "\"block_scale\":\"best\",\"roles\":"),
                   "recipe.rules[1].block_scale: expected max, mse or four-over-six, found \"best\""));
    CHECK(contains(refusal("\"roles\":", "\"input_scale\":\"constant=-1\",\"roles\":"),
                   "recipe.rules[1].input_scale: expected keep, none, constant"));
    CHECK(contains(refusal("\"roles\":", "\"draft_experts\":\"drop\",\"roles\":"),
                   "recipe.rules[1].draft_experts: expected keep or cast, found \"drop\""));
  }
}

TEST_CASE("a manifest of another format is refused by its number") {
  for (const int format : {1, 5}) {
    CAPTURE(format);
    const Changed changed("v7", format);
    const std::string refusal = message_of([&] { changed.read(changed.text); });
    CHECK(contains(refusal, fmt::format("twofour.json: expected manifest format 2 to 4, found {}", format)));
    CHECK((refusal.find("a newer twofour wrote it") != std::string::npos) == (format > 4));
    CHECK(message_of([&] { open_source(changed.artifact); }) == refusal);
    CHECK(message_of([&] { model_card(changed.artifact, {}); }) == refusal);
  }
}

}  // namespace recipe_words_test
