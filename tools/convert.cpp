#include <memory>

#include "formats/layouts.h"
#include "tools/conversion.h"

namespace twofour {
namespace {

struct Options {
  ConversionOptions common;
  std::string layout, fold = "larger";
};

}  // namespace

std::function<int()> setup_convert(CLI::App& app, const Common& common) {
  auto o = std::make_shared<Options>();
  std::vector<std::string> layouts;
  for_each_layout([&]<class L>() { layouts.push_back(L::name); });
  add_conversion_options(app, o->common);
  app.add_option("--to", o->layout, "What to write")->required()->check(CLI::IsMember(layouts));
  app.add_option("--fold", o->fold, "Unequal global scales of gate and up: to the larger, or refuse (strict)")
      ->check(CLI::IsMember({"larger", "strict"}));
  return [o, &common] {
    Recipe recipe;
    recipe.layout = o->layout;
    recipe.fold = o->fold == "strict" ? Fold::kStrict : Fold::kLarger;
    return run_conversion(o->common, recipe, common, "convert");
  };
}

}  // namespace twofour
