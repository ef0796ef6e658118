#pragma once
#include "lib/write/budget/budget.h"
#include "tools/cli/conversion_options.h"

namespace twofour {

/// The document of a plan for --dry-run.
Json plan_to_json(const Checkpoint& source, const Plan& plan, int jobs, Device device);
/// Prints the output of --dry-run.
void print_planned(const Checkpoint& source, const Plan& plan, Device device, const Common& common);

/// Throws Error on options that give no valid budget.
void check_budget(const RecipeOptions& options);

/// Measures the cost of each unit, gives the recipe the rules that prune the units that the budget pays for,
/// and writes --html.
BudgetChoice take_budget(const ConversionOptions& options, const RecipeOptions& recipe_options, Device device,
                         const Common& common, Recipe& recipe);

/// A line on the pruned units, without a line end.
std::string budget_summary(const BudgetChoice& choice);
/// Prints the output of --dry-run: the cost of each unit, and the summary. Returns the exit code.
int show_budget(const Checkpoint& source, const Plan& plan, const BudgetChoice& choice, Device device,
                const Common& common);

}  // namespace twofour
