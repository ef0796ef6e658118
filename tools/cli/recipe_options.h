#pragma once
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "lib/recipe/settings/rule_settings.h"
#include "lib/write/budget/budget.h"
#include "lib/write/plan/plan.h"
#include "tools/cli/arguments.h"
#include "tools/cli/command.h"

namespace twofour {

/// The options for the format of a written checkpoint. The choice of modules and the size of files are not
/// among them.
struct RecipeOptions {
  /// A setting of rules that was given as an option. The row of the setting decides whether it is a text, a
  /// number or a bool.
  struct Configured {
    std::string text;
    int64_t number = -1;
    bool flag = false;
  };
  std::string layout;
  std::map<std::string_view, Configured> settings;  ///< settings of the command, by key
  std::string recipe;      ///< for convert; file or name of a recipe; excludes other options
  std::string statistics;  ///< a statistics file
  bool strict_statistics = false;
  bool collects_statistics = false;  ///< for compress; collects statistics first
  Budget budget;                     ///< for quantize; the amount to prune
  std::string mask;                  ///< a file of masks to use instead of computed masks
  std::string html;                  ///< for quantize; a report on the cost of pruning

  /// The text of a setting. Empty if it was not given.
  std::string text(std::string_view key) const;
};

/// Adds the options of a command, which are settings of rules and, if it converts, --to and --recipe.
/// --include, --exclude and --also must have been added before.
void add_recipe_options(Arguments& args, RecipeOptions& options, RuleCommand command);

/// Adds the option for a setting of rules.
void add_word(Arguments& args, RecipeOptions& options, RuleCommand command, std::string_view key);

/// Adds --stats and the options for choosing weights by statistics to a command. For convert, these settings
/// are already among the settings of rules.
void add_statistics_options(Arguments& args, RecipeOptions& options, RuleCommand command);

/// Adds --mask to a command.
void add_mask_option(Arguments& args, RecipeOptions& options, RuleCommand command);

/// Adds --budget, --max-loss and --html.
void add_budget_options(Arguments& args, RecipeOptions& options, RuleCommand command);

/// Makes the option `option` exclude all options for choosing and changing modules.
void exclude_rule_settings(Arguments& args, const std::string& option);

/// Reads the recipe that --recipe names. It is the file of that name or, if there is no such file and the
/// name has neither "/" nor ".", the built-in recipe. Its rules get the statistics of --stats.
Recipe open_recipe(const RecipeOptions& options);

/// Gives a rule the value of a setting, if the option was given. Throws Error on a value that the setting
/// does not have.
void take_word(const RecipeOptions& options, std::string_view key, Rule& rule);

/// Makes the rule that the options ask for. Throws Error on an option that does not apply to `layout`.
Rule make_rule(const RecipeOptions& options);

}  // namespace twofour
