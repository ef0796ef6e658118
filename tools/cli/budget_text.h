#pragma once
#include "lib/budget/budget.h"
#include "tools/cli/conversion_options.h"

namespace twofour {

/// Throws Error on options that make no budget.
void check_budget(const RecipeOptions& options);

/// Measures what each unit costs, gives the recipe the rules that prune what the budget pays for, and writes
/// --html.
BudgetChoice take_budget(const ConversionOptions& options, const RecipeOptions& recipe_options, Device device,
                         const Common& common, Recipe& recipe);

/// What is pruned, in a line without its end.
std::string budget_summary(const BudgetChoice& choice);
/// What --dry-run prints: what each unit costs, and the summary. Returns the exit code.
int show_budget(const Checkpoint& source, const Plan& plan, const BudgetChoice& choice, Device device,
                const Common& common);

}  // namespace twofour
