#include <fmt/format.h>

#include <memory>

#include "formats/error.h"
#include "formats/layouts.h"
#include "tools/conversion.h"

namespace twofour {
namespace {

struct Options {
  ConversionOptions common;
  std::string layout, fold = "larger", dialect;
};

}  // namespace

std::function<int()> setup_convert(CLI::App& app, const Common& common) {
  auto o = std::make_shared<Options>();
  std::vector<std::string> layouts;
  for_each_layout([&]<class L>() { layouts.push_back(L::name); });
  layouts.insert(layouts.end(), {"nvfp4", "bf16"});
  add_conversion_options(app, o->common);
  app.add_option("--to", o->layout, "What to write")->required()->check(CLI::IsMember(layouts));
  app.add_option("--fold", o->fold, "Unequal global scales of gate and up: to the larger, or refuse (strict)")
      ->check(CLI::IsMember({"larger", "strict"}));
  app.add_option("--dialect", o->dialect,
                 "Of nvfp4: modelopt or compressed-tensors (default: the other one, of an artifact its own)")
      ->check(CLI::IsMember({"modelopt", "compressed-tensors"}));
  return [o, &common] {
    if (!o->dialect.empty() && o->layout != "nvfp4") {
      throw Error(fmt::format("--dialect: expected with --to nvfp4 only, found with --to {}", o->layout));
    }
    Recipe recipe;
    recipe.layout = o->layout;
    recipe.dialect = o->dialect;
    recipe.fold = o->fold == "strict" ? Fold::kStrict : Fold::kLarger;
    return run_conversion(o->common, recipe, common, "convert");
  };
}

}  // namespace twofour
