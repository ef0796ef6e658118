#include <memory>

#include "tools/cli/conversion_options.h"
#include "tools/cli/recipe_options.h"

namespace twofour {
namespace {

struct QuantizeArguments {
  ConversionOptions common;
  RecipeOptions recipe;
};

}  // namespace

std::function<int()> setup_quantize(Arguments& args, const Common& common) {
  auto o = std::make_shared<QuantizeArguments>();
  o->recipe.layout = "quantize";
  add_conversion_options(args, o->common);
  add_recipe_options(args, o->recipe, kQuantizes);
  add_statistics_options(args, o->recipe, kQuantizes);
  add_mask_option(args, o->recipe, kQuantizes);
  add_budget_options(args, o->recipe, kQuantizes);
  args.footer(
      "Quantizes every linear except embeddings, heads, routers, norms, convolutions, vision towers and MTP, "
      "which stay in floats. Weights in FP8 or MXFP4 are quantized wherever they are. --also adds modules.\n"
      "Only weights are quantized: activations need calibration data. Engines run the output as W4A16.\n"
      "Gate and up share a global scale, and so do q, k and v. A stack of experts becomes one matrix per "
      "expert.\n"
      "MXFP4 is cast without loss where its block scales allow.");
  return [o, &common] { return run_conversion(o->common, o->recipe, common); };
}

}  // namespace twofour
