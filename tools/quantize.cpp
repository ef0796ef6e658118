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
  args.footer(
      "Quantizes every linear but embeddings, heads, routers, norms, convolutions, vision towers and MTP, "
      "which stay in floats (what is stored in FP8 or MXFP4 is quantized wherever it is). --also adds one "
      "back.\n"
      "Weights only: activations need calibration data, so engines run what is written as W4A16.\n"
      "Gate and up, and q, k and v, share a global scale. Stacks of experts become a matrix an expert.\n"
      "MXFP4 is cast without loss where its block scales allow.");
  return [o, &common] { return run_conversion(o->common, o->recipe, common); };
}

}  // namespace twofour
