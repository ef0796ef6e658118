#include "tools/cli/recipe_options.h"

#include <fmt/format.h>

#include <initializer_list>

#include "formats/error.h"
#include "formats/layouts/layouts.h"

namespace twofour {
namespace {

void add_convert_options(CLI::App& app, RecipeOptions& o, bool all) {
  std::vector<std::string> layouts;
  for_each_layout([&]<class L>() { layouts.push_back(L::name); });
  layouts.insert(layouts.end(), {"nvfp4", "fp8", "bf16"});
  if (all) layouts.insert(layouts.end(), {"prune", "quantize"});
  app.add_option("--to", o.layout, "What to write")->check(CLI::IsMember(layouts));
  app.add_option("--fold", o.fold, "Unequal global scales of gate and up: to the larger, or refuse (strict)")
      ->check(CLI::IsMember({"larger", "strict"}));
  app.add_option(
         "--granularity", o.granularity,
         "Of fp8: weights that share a scale, tensor, row (default) or block of 128 x 128, which is all "
         "that deepseek has")
      ->check(CLI::IsMember({"tensor", "row", "block"}));
}

void add_dialect(CLI::App& app, RecipeOptions& o, bool converts, bool quantizes) {
  std::vector<std::string> dialects{"modelopt", "compressed-tensors"};
  if (converts) dialects.push_back("deepseek");
  std::string help;
  if (converts) {
    help =
        "Of nvfp4: modelopt or compressed-tensors (default: the other one, of an artifact its own); "
        "of fp8 also deepseek (default: compressed-tensors)";
  }
  if (quantizes) {
    help += fmt::format("{}ames and configuration to write: modelopt (default) or compressed-tensors",
                        converts ? "; of quantize: n" : "N");
  }
  app.add_option("--dialect", o.dialect, help)->check(CLI::IsMember(dialects));
}

void add_pattern(CLI::App& app, RecipeOptions& o, bool prunes, bool quantizes) {
  std::vector<std::string> patterns{"2:4"};
  if (prunes) patterns.push_back("4:8-paired");
  std::string help;
  if (prunes) help = "2:4: two codes of each four stay; 4:8-paired: two aligned pairs of each eight";
  if (quantizes) {
    help += fmt::format(
        "{}2:4: prune the weights first, so that block scales fit those that stay; says what that gains",
        prunes ? "; of quantize: " : "");
  }
  app.add_option("--pattern", o.pattern, help)->check(CLI::IsMember(patterns));
}

void add_quantize_options(CLI::App& app, RecipeOptions& o) {
  app.add_option(
         "--arithmetic", o.arithmetic,
         "Whose rounding, bit for bit: modelopt (0.45 and later) or compressed-tensors (llm-compressor); "
         "default: the dialect's")
      ->check(CLI::IsMember({"modelopt", "compressed-tensors"}));
  app.add_option(
         "--block-scale", o.block_scale,
         "How the scale of 16 weights is chosen: max (default) fits the largest weight; mse tries all and "
         "takes the least squared error; four-over-six takes the better of two. In compressed-tensors' "
         "arithmetic the last two are our own extension")
      ->check(CLI::IsMember({"max", "mse", "four-over-six"}));
  app.add_option("--zero-block", o.zero_block,
                 "Blocks whose scale rounds to zero: the scale that the producer writes (default), or scale "
                 "and codes zero")
      ->check(CLI::IsMember({"producer", "zero"}));
  app.add_option(
      "--keep-global-scale", o.keep_global_scale,
      "NVFP4 checkpoint (directory or file) whose global scales are used instead of new ones, by the "
      "modules' names; then all codes and block scales are compared with its own. A weight of -0 stays -0");
}

/// Throws unless an option that was given belongs to what is written.
void check_given(const RecipeOptions& o, const char* option, bool given, std::string_view where, bool fits) {
  if (!given || fits) return;
  throw Error(fmt::format("{}: expected with --to {} only, found with --to {}", option, where, o.layout));
}

}  // namespace

void add_recipe_options(CLI::App& app, RecipeOptions& o, unsigned kinds) {
  const bool converts = kinds & kConverts, prunes = kinds & kPrunes, quantizes = kinds & kQuantizes;
  if (converts) add_convert_options(app, o, prunes && quantizes);
  if (converts || quantizes) add_dialect(app, o, converts, quantizes);
  if (prunes || quantizes) add_pattern(app, o, prunes, quantizes);
  if (quantizes) add_quantize_options(app, o);
}

Recipe make_recipe(const RecipeOptions& o) {
  const Rewrite rewrite = rewrite_of(o.layout);
  const bool prunes = rewrite == Rewrite::kPrune, quantizes = rewrite == Rewrite::kQuantize;
  const bool fp8 = rewrite == Rewrite::kFp8, nvfp4 = rewrite == Rewrite::kNvfp4;
  check_given(o, "--dialect", !o.dialect.empty(), "nvfp4 or fp8", nvfp4 || fp8 || quantizes);
  if (o.fold == "strict" && rewrite != Rewrite::kNone) {
    throw Error(fmt::format("--fold: expected with a layout only, found with --to {}", o.layout));
  }
  check_given(o, "--granularity", !o.granularity.empty(), "fp8", fp8);
  check_given(o, "--pattern", !o.pattern.empty(), "prune or quantize", prunes || quantizes);
  check_given(o, "--pattern 4:8-paired", o.pattern == "4:8-paired", "prune", prunes);
  check_given(o, "--arithmetic", !o.arithmetic.empty(), "quantize", quantizes);
  check_given(o, "--block-scale", !o.block_scale.empty(), "quantize", quantizes);
  check_given(o, "--zero-block", !o.zero_block.empty(), "quantize", quantizes);
  check_given(o, "--keep-global-scale", !o.keep_global_scale.empty(), "quantize", quantizes);
  Recipe recipe;
  recipe.layout = o.layout;
  recipe.pattern = prunes && o.pattern.empty() ? "2:4" : o.pattern;
  recipe.dialect = o.dialect;
  recipe.granularity = o.granularity;
  recipe.arithmetic = o.arithmetic;
  recipe.block_scale = o.block_scale;
  recipe.zero_block = o.zero_block;
  recipe.fold = o.fold == "strict" ? Fold::kStrict : Fold::kLarger;
  return recipe;
}

}  // namespace twofour
