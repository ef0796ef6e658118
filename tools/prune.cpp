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
  add_statistics_options(args, o->recipe, kPrunes);
  add_mask_option(args, o->recipe, kPrunes);
  add_budget_options(args, o->recipe, kPrunes);
  args.footer(
      "Without --stats the smallest codes of each group are dropped, and all else stays. With it the weights "
      "that are left are chosen anew to keep the output near to what NVFP4 gave: codes and block scales "
      "change, scales of matrices and of inputs stay.");
  return [o, &common] { return run_conversion(o->common, o->recipe, common); };
}

}  // namespace twofour
