#include <memory>

#include "tools/cli/conversion_options.h"
#include "tools/cli/recipe_options.h"

namespace twofour {
namespace {

struct Options {
  ConversionOptions common;
  RecipeOptions recipe;
};

}  // namespace

std::function<int()> setup_prune(CLI::App& app, const Common& common) {
  auto o = std::make_shared<Options>();
  o->recipe.layout = "prune";
  add_conversion_options(app, o->common);
  add_recipe_options(app, o->recipe, kPrunes);
  return [o, &common] { return run_conversion(o->common, o->recipe, common); };
}

}  // namespace twofour
