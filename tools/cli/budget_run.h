#pragma once
#include "tools/cli/conversion_options.h"

namespace twofour {

/// Quantizes, and prunes as much as --budget or --max-loss allows; --dry-run prints what each unit costs.
int run_by_budget(const ConversionOptions& options, const RecipeOptions& recipe_options,
                  const Common& common);

}  // namespace twofour
