#include <algorithm>

#include "lib/recipe/artifact/recipe_file.h"
#include "lib/recipe/artifact/yaml.h"
#include "tests/fuzz/fuzz.h"

using namespace twofour;

namespace {

/// Depth of a tree, all of whose places are within the text.
size_t depth_of(const YamlNode& node, size_t lines) {
  promise(node.line >= 1 && node.line <= lines && node.column >= 1);
  promise(node.kind == YamlNode::Kind::kMap ? node.keys.size() == node.items.size() : node.keys.empty());
  size_t deepest = 0;
  for (const YamlNode& item : node.items) deepest = std::max(deepest, depth_of(item, lines) + 1);
  return deepest;
}

}  // namespace

void twofour::fuzz_recipe(const uint8_t* data, size_t size) {
  const std::string_view text = text_of(data, size);
  const auto lines = static_cast<size_t>(std::count(text.begin(), text.end(), '\n')) + 1;
  expect_error_at_most([&] { promise(depth_of(parse_yaml("recipe", text), lines) <= kDeepestYaml); });
  expect_error_at_most([&] {
    const Recipe recipe = read_recipe("recipe", text);
    promise(!recipe.rules.empty() && recipe.max_shard_size > 0);
    for (const Rule& rule : recipe.rules) {
      const Selection& s = rule.selection;
      promise(!s.roles.empty() || !s.include.empty() || !s.also.empty());
      promise(s.from_default == !s.include.empty() && rule.label.size() < 200);
    }
    const Json json = recipe_to_json(recipe);
    promise(recipe_to_json(recipe_from_json("again", json)) == json);
  });
}
