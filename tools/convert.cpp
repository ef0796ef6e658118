#include <fmt/format.h>

#include <memory>

#include "formats/error.h"
#include "formats/layouts.h"
#include "tools/conversion.h"

namespace twofour {
namespace {

struct Options {
  ConversionOptions common;
  std::string layout, fold = "larger", dialect, granularity;
};

}  // namespace

std::function<int()> setup_convert(CLI::App& app, const Common& common) {
  auto o = std::make_shared<Options>();
  std::vector<std::string> layouts;
  for_each_layout([&]<class L>() { layouts.push_back(L::name); });
  layouts.insert(layouts.end(), {"nvfp4", "fp8", "bf16"});
  add_conversion_options(app, o->common);
  app.add_option("--to", o->layout, "What to write")->required()->check(CLI::IsMember(layouts));
  app.add_option("--fold", o->fold, "Unequal global scales of gate and up: to the larger, or refuse (strict)")
      ->check(CLI::IsMember({"larger", "strict"}));
  app.add_option("--dialect", o->dialect,
                 "Of nvfp4: modelopt or compressed-tensors (default: the other one, of an artifact its own); "
                 "of fp8 also deepseek "
                 "(default: compressed-tensors)")
      ->check(CLI::IsMember({"modelopt", "compressed-tensors", "deepseek"}));
  app.add_option(
         "--granularity", o->granularity,
         "Of fp8: weights that share a scale, tensor, row (default) or block of 128 x 128, which is all "
         "that deepseek has")
      ->check(CLI::IsMember({"tensor", "row", "block"}));
  return [o, &common] {
    if (!o->dialect.empty() && o->layout != "nvfp4" && o->layout != "fp8") {
      throw Error(
          fmt::format("--dialect: expected with --to nvfp4 or fp8 only, found with --to {}", o->layout));
    }
    if (o->fold == "strict" && rewrite_of(o->layout) != Rewrite::kNone) {
      throw Error(fmt::format("--fold: expected with a layout only, found with --to {}", o->layout));
    }
    if (!o->granularity.empty() && o->layout != "fp8") {
      throw Error(fmt::format("--granularity: expected with --to fp8 only, found with --to {}", o->layout));
    }
    Recipe recipe;
    recipe.layout = o->layout;
    recipe.dialect = o->dialect;
    recipe.granularity = o->granularity;
    recipe.fold = o->fold == "strict" ? Fold::kStrict : Fold::kLarger;
    return run_conversion(o->common, recipe, common, "convert");
  };
}

}  // namespace twofour
