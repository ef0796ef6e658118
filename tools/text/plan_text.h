#pragma once
#include "lib/write/budget/budget.h"
#include "tools/cli/conversion_options.h"

namespace twofour {

/// The JSON document that describes a plan, for --dry-run.
Json plan_to_json(const Checkpoint& source, const Plan& plan, int jobs, Device device);
/// The device and speed of a run, as a line with a line end: "cpu, 0.21 s: 0.50 GB/s read, ...".
std::string speed_text(Device device, double seconds, uint64_t read, uint64_t written, bool verified);
/// Prints the output of --dry-run. It begins with the answer: sizes, memory, and the free space for them.
void print_planned(const std::string& destination, const Checkpoint& source, const Plan& plan, Device device,
                   const Common& common);

/// Throws Error if the options do not give a valid budget.
void check_budget(const RecipeOptions& options);

/// Measures the cost of pruning each unit, and gives `recipe` rules that prune the units that the budget pays
/// for. Writes the report of --html.
BudgetChoice take_budget(const ConversionOptions& options, const RecipeOptions& recipe_options, Device device,
                         const Common& common, Recipe& recipe);

/// A line about the pruned units, without a line end.
std::string budget_summary(const BudgetChoice& choice);
/// Prints the output of --dry-run with a budget, which is the cost of each unit and the summary. Returns the
/// exit code.
int show_budget(const Checkpoint& source, const Plan& plan, const BudgetChoice& choice, Device device,
                const Common& common);

}  // namespace twofour
