#pragma once
#include "lib/budget/budget.h"
#include "tools/cli/conversion_options.h"

namespace twofour {

/// Measures what each unit costs, and gives the recipe the rules that prune what --budget or --max-loss pays
/// for. Writes --html.
BudgetChoice choose_by_budget(const ConversionOptions& options, const RecipeOptions& recipe_options,
                              Device device, const Common& common, Recipe& recipe);

/// Says where the budget pays for no unit at all.
void warn_of_small_budget(const RecipeOptions& options, const BudgetChoice& choice, Findings& findings);

/// Quantizes, and prunes as much as --budget or --max-loss allows; --dry-run prints what each unit costs.
int run_by_budget(const ConversionOptions& options, const RecipeOptions& recipe_options,
                  const Common& common);

}  // namespace twofour
