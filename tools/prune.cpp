#include <memory>

#include "kernels/prune.h"
#include "tools/conversion.h"

namespace twofour {
namespace {

struct Options {
  ConversionOptions common;
  std::string pattern{prune_pattern_name(PrunePattern::k2of4)};
};

}  // namespace

std::function<int()> setup_prune(CLI::App& app, const Common& common) {
  auto o = std::make_shared<Options>();
  add_conversion_options(app, o->common);
  app.add_option("--pattern", o->pattern,
                 "2:4: two codes of each four stay; 4:8-paired: two aligned pairs of each eight")
      ->check(CLI::IsMember({"2:4", "4:8-paired"}));
  return [o, &common] {
    Recipe recipe;
    recipe.layout = "prune";
    recipe.pattern = o->pattern;
    return run_conversion(o->common, recipe, common, "prune");
  };
}

}  // namespace twofour
