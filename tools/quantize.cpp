#include <memory>

#include "tools/conversion.h"

namespace twofour {
namespace {

struct Options {
  ConversionOptions common;
  Recipe recipe;
};

}  // namespace

std::function<int()> setup_quantize(CLI::App& app, const Common& common) {
  auto o = std::make_shared<Options>();
  Recipe& recipe = o->recipe;
  recipe.layout = "quantize";
  add_conversion_options(app, o->common);
  app.add_option("--dialect", recipe.dialect,
                 "Names and configuration to write: modelopt (default) or compressed-tensors")
      ->check(CLI::IsMember({"modelopt", "compressed-tensors"}));
  app.add_option(
         "--arithmetic", recipe.arithmetic,
         "Whose rounding, bit for bit: modelopt (0.45 and later) or compressed-tensors (llm-compressor); "
         "default: the dialect's")
      ->check(CLI::IsMember({"modelopt", "compressed-tensors"}));
  app.add_option(
         "--block-scale", recipe.block_scale,
         "How the scale of 16 weights is chosen: max (default) fits the largest weight; mse tries all and "
         "takes the least squared error; four-over-six takes the better of two. In compressed-tensors' "
         "arithmetic the last two are our own extension")
      ->check(CLI::IsMember({"max", "mse", "four-over-six"}));
  app.add_option("--zero-block", recipe.zero_block,
                 "Blocks whose scale rounds to zero: the scale that the producer writes (default), or scale "
                 "and codes zero")
      ->check(CLI::IsMember({"producer", "zero"}));
  app.add_option(
      "--keep-global-scale", o->common.keep_global_scale,
      "NVFP4 checkpoint (directory or file) whose global scales are used instead of new ones, by the "
      "modules' names; then all codes and block scales are compared with its own. A weight of -0 stays -0");
  app.add_option(
         "--pattern", recipe.pattern,
         "2:4: prune the weights first, so that block scales fit those that stay; says what that gains")
      ->check(CLI::IsMember({"2:4"}));
  app.footer(
      "Quantizes every linear but embeddings, heads, routers, norms, convolutions, vision towers and MTP, "
      "which\n"
      "stay in floats (what is stored in FP8 or MXFP4 is quantized wherever it is). --also adds one back.\n"
      "Weights only: activations need calibration data, so engines run what is written as W4A16.\n"
      "Gate and up, and q, k and v, share a global scale. Stacks of experts become a matrix an expert.\n"
      "MXFP4 is cast without loss where its block scales allow.");
  return [o, &common] { return run_conversion(o->common, o->recipe, common, "quantize"); };
}

}  // namespace twofour
