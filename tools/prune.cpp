#include <memory>

#include "tools/cli/conversion_options.h"
#include "tools/cli/recipe_options.h"

namespace twofour {
namespace {

struct PruneArguments {
  ConversionOptions common;
  RecipeOptions recipe;
};

}  // namespace

std::function<int()> setup_prune(Arguments& args, const Common& common) {
  auto o = std::make_shared<PruneArguments>();
  o->recipe.layout = "prune";
  add_conversion_options(args, o->common);
  add_recipe_options(args, o->recipe, kPrunes);
  return [o, &common] { return run_conversion(o->common, o->recipe, common); };
}

}  // namespace twofour
