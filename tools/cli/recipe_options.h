#pragma once
#include <optional>
#include <string>

#include "lib/plan/plan.h"
#include "tools/cli/arguments.h"
#include "tools/cli/command.h"

namespace twofour {

/// What says how a checkpoint is to be written, apart from the choice of modules and the size of files.
struct RecipeOptions {
  std::string layout, fold = "larger", dialect, granularity, block, scale_dtype, odd_blocks, exact;
  std::string pattern, arithmetic, block_scale, zero_block, input_scale, draft_experts;
  bool one_input_scale_a_layer = false;
  std::string recipe;              ///< convert: file or name of a recipe, in place of everything else here
  std::string keep_global_scale;   ///< quantize: reference checkpoint
  std::string statistics, method;  ///< quantize: a statistics file, and how weights are chosen by it
  int64_t sweeps = -1;
  bool strict_statistics = false;
  bool collects_statistics = false;  ///< compress: rules have statistics once the command collected them
  std::optional<double> budget, max_loss;  ///< quantize: how much is pruned
  std::string mask;                        ///< of others, in place of masks that are chosen
  std::string html;                        ///< quantize: a report on what pruning costs
};

/// Commands that have these options.
enum RecipeKind : unsigned { kConverts = 1, kPrunes = 2, kQuantizes = 4 };

/// Adds those of some commands to an app: convert's (--to and --recipe among them), prune's and quantize's;
/// of several, --to names prune and quantize too. With --recipe, --include, --exclude and --also must be
/// there before.
void add_recipe_options(Arguments& args, RecipeOptions& options, unsigned kinds);

/// Adds --stats and what says how weights are chosen by it, of one of the commands; rules of convert say that
/// themselves.
void add_statistics_options(Arguments& args, RecipeOptions& options, RecipeKind kind);

/// Adds --mask, of one of the commands.
void add_mask_option(Arguments& args, RecipeOptions& options, RecipeKind kind);

/// Adds --budget, --max-loss and --html.
void add_budget_options(Arguments& args, RecipeOptions& options, RecipeKind kind);

/// The option of that name excludes all that says how rules choose and change modules.
void exclude_rule_words(Arguments& args, const std::string& option);

/// The recipe of a file of that name or, for a name without "/" and ".", else the shipped one. Its rules get
/// the statistics.
Recipe open_recipe(const RecipeOptions& options);

/// The rule that they ask for. Throws Error on an option that `layout` does not have.
Rule make_rule(const RecipeOptions& options);

}  // namespace twofour
