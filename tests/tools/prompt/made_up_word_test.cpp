#include <doctest/doctest.h>
#include <fmt/format.h>

#include "lib/recipe/artifact/recipe_file.h"
#include "lib/write/plan/method.h"
#include "tests/support/message.h"
#include "tools/cli/arguments.h"
#include "tools/cli/recipe_options.h"

/// A word of a rule is a row of rule_settings(): what follows from it needs no other place.

namespace made_up_word_test {

using namespace twofour;

namespace {

/// Where the made-up word is kept: rules have no field of it.
std::string& kept(const Rule& rule) { return const_cast<Rule&>(rule).label; }

RuleSetting made_up() {
  return {.key = "glaze_type",
          .write = [](const Rule& r) { return kept(r).empty() ? Json() : Json(kept(r)); },
          .take =
              [](const JsonPlace&, const Json& json, Rule& r) {
                kept(r) = json.get<std::string>();
                return true;
              },
          .asked = {.methods = kToFp8,
                    .place = {5, 4},
                    .help = {{kConverts, "How it is glazed, beside {block}", "matt"}},
                    .file_help = "how it is glazed",
                    .values = [](unsigned) {
                      return std::vector<std::string>{"matt", "clear"};
                    }}};
}

/// Adds the row to the table of words for a test.
struct WithWord {
  WithWord() { rule_settings().push_back(made_up()); }
  ~WithWord() { rule_settings().pop_back(); }
};

/// convert with its options of recipes.
struct Command {
  RecipeOptions options;
  std::string include, exclude, also;
  Arguments args{"convert", "converts"};
  Command() {
    args.option("--include", include, "").value_name("P");
    args.option("--exclude", exclude, "").value_name("P");
    args.option("--also", also, "").value_name("P");
    add_recipe_options(args, options, kConverts);
  }
  const ArgumentEntry* find(const std::string& name) {
    entry = args.entry();
    for (const ArgumentEntry& o : entry.options) {
      if (!o.names.empty() && o.names[0] == name) return &o;
    }
    return nullptr;
  }
  CommandEntry entry;
};

}  // namespace

TEST_CASE("without its row the made-up word is nowhere") {
  CHECK(Command().find("--glaze-type") == nullptr);
  CHECK(contains(
      message_of([] { read_recipe("r", "format: 1\nrules: [{match: mlp, to: fp8, glaze_type: clear}]"); }),
      "expected one of the keys"));
}

TEST_CASE("a row makes the option, its help, the key, the field and the refusal of others") {
  const WithWord row;
  Command command;
  const ArgumentEntry* option = command.find("--glaze-type");
  REQUIRE(option != nullptr);
  CHECK(option->choices == std::vector<std::string>{"matt", "clear"});
  CHECK(option->description == "How it is glazed, beside --block");
  CHECK(option->default_text == "matt");
  command.options.layout = "fp8";
  command.options.settings.at("glaze_type").text = "clear";
  const Rule rule = make_rule(command.options);
  const Json json = recipe_to_json(Recipe(rule));
  CHECK(json.at("rules").at(0).at("glaze_type") == "clear");
  CHECK(kept(recipe_from_json("r", json).rules[0]) == "clear");
  command.options.layout = "bf16";
  CHECK(message_of([&] { make_rule(command.options); }) ==
        "--glaze-type: expected with --to fp8 only, found with --to bf16");

  const std::string keys = [] {
    std::string text;
    for (const RecipeKey& key : rule_keys())
      text += fmt::format("{}: {}; {}\n", key.key, key.values, key.text);
    return text;
  }();
  CHECK(contains(keys, "glaze_type: matt or clear; with to: fp8: how it is glazed (default: matt)\n"));
  const std::string recipe = "format: 1\nrules: [{match: mlp, to: TO, glaze_type: clear}]";
  const auto refusal = [&](const std::string& to) {
    return message_of([&] { read_recipe("r", std::string(recipe).replace(recipe.find("TO"), 2, to)); });
  };
  CHECK(refusal("fp8").empty());
  CHECK(contains(refusal("bf16"),
                 "rules[0].glaze_type: expected it only with to: fp8, found it with to: bf16"));
}

}  // namespace made_up_word_test
