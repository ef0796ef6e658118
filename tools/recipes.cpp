#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "lib/recipe/artifact/recipe_file.h"
#include "tools/cli/arguments.h"
#include "tools/cli/command.h"

namespace twofour {
namespace {

struct RecipesArguments {
  std::string name;
};

int list_recipes(const Common& common) {
  if (common.json) {
    Json list = Json::array();
    for (const ShippedRecipe& r : shipped_recipes())
      list.push_back({{"name", r.name}, {"summary", r.summary()}});
    print_json({{"recipes", std::move(list)}});
    return kDone;
  }
  size_t width = 0;
  for (const ShippedRecipe& r : shipped_recipes()) width = std::max(width, r.name.size());
  for (const ShippedRecipe& r : shipped_recipes()) print_stdout("{:<{}}  {}\n", r.name, width, r.summary());
  return kDone;
}

int run_recipes(const RecipesArguments& o, const Common& common) {
  if (o.name.empty()) return list_recipes(common);
  const ShippedRecipe& r = *find_shipped_recipe(o.name);
  if (common.json) {
    print_json({{"name", r.name}, {"summary", r.summary()}, {"text", r.text}});
  } else {
    print_stdout("{}", Lines{std::string(r.text)});
  }
  return kDone;
}

std::string keys_text(const std::vector<RecipeKey>& keys) {
  std::string text;
  for (const RecipeKey& k : keys) text += fmt::format("  {:<23}  {}; {}\n", k.key, k.values, k.text);
  return text;
}

std::string schema_text() {
  return fmt::format(
      "A recipe is a file in YAML or JSON. Keys of the file:\n{}\nKeys of a rule:\n{}\n"
      "match is one of these, or a list of them:\n"
      "  a role                   {}: all modules that have it\n"
      "  a module's name          model.layers.0.mlp.down_proj: this module\n"
      "  a glob                   \"*.mlp.*\", in quotes: what of it the rule takes by default\n"
      "  re: and an expression    're:.*\\.mlp\\..*': likewise\n"
      "Globs and expressions reach no router, head, norm or embedding, except with to: keep and to: bf16; "
      "names and roles do. What no rule takes stays as it is. A name or pattern that matches nothing is an "
      "error, and so are roles of which the model has none. "
      "Messages "
      "count rules[0] as the first, --dry-run calls it rule 1.\n\n"
      "Attention to FP8, dense MLPs and experts to NVFP4, for compressed-tensors:\n"
      "  format: 1\n"
      "  dialect: compressed-tensors\n"
      "  rules:\n"
      "    - {{match: [attention, linear-attention], to: fp8, granularity: row}}\n"
      "    - {{match: [mlp, experts], to: nvfp4, block_scale: mse}}\n\n"
      "The first layer as it is, all other experts to v7:\n"
      "  format: 1\n"
      "  rules:\n"
      "    - {{match: \"model.layers.0.*\", to: keep}}\n"
      "    - {{match: experts, to: v7}}",
      keys_text(recipe_keys()), keys_text(rule_keys()), fmt::join(role_names(), ", "));
}

}  // namespace

std::function<int()> setup_recipes(Arguments& args, const Common& common) {
  auto o = std::make_shared<RecipesArguments>();
  std::vector<std::string> names;
  for (const ShippedRecipe& r : shipped_recipes()) names.emplace_back(r.name);
  args.option("NAME", o->name, "Recipe to print; without one, all are listed").one_of(names);
  args.footer(schema_text());
  return [o, &common] { return run_recipes(*o, common); };
}

}  // namespace twofour
