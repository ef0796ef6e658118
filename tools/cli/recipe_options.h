#pragma once
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "lib/recipe/words/rule_words.h"
#include "lib/write/budget/budget.h"
#include "lib/write/plan/plan.h"
#include "tools/cli/arguments.h"
#include "tools/cli/command.h"

namespace twofour {

/// Options for the format of a written checkpoint, without the choice of modules and the size of files.
struct RecipeOptions {
  /// A setting of rules that was given as an option: a text, a number or a bool, by its row.
  struct Said {
    std::string text;
    int64_t number = -1;
    bool flag = false;
  };
  std::string layout;
  std::map<std::string_view, Said> words;  ///< settings of the command, by key
  std::string recipe;      ///< convert: file or name of a recipe, instead of all other options here
  std::string statistics;  ///< a statistics file
  bool strict_statistics = false;
  bool collects_statistics = false;  ///< compress: the command collects them before weights are chosen
  Budget budget;                     ///< quantize: the amount to prune
  std::string mask;                  ///< a file of given masks, instead of chosen ones
  std::string html;                  ///< quantize: a report on the cost of pruning

  /// The text of a setting; "" if it was not given.
  std::string text(std::string_view key) const;
};

/// Adds the options of a command: --to and --recipe if it converts, and settings of rules. --include,
/// --exclude and --also must have been added before.
void add_recipe_options(Arguments& args, RecipeOptions& options, RuleCommand command);

/// Adds the option for a setting of rules.
void add_word(Arguments& args, RecipeOptions& options, RuleCommand command, std::string_view key);

/// Adds --stats and the options for choosing weights by it to a command; rules of convert have these settings
/// themselves.
void add_statistics_options(Arguments& args, RecipeOptions& options, RuleCommand command);

/// Adds --mask to a command.
void add_mask_option(Arguments& args, RecipeOptions& options, RuleCommand command);

/// Adds --budget, --max-loss and --html.
void add_budget_options(Arguments& args, RecipeOptions& options, RuleCommand command);

/// The option of that name excludes all options for choosing and changing modules.
void exclude_rule_words(Arguments& args, const std::string& option);

/// The recipe of a file of that name or, if there is none and the name has no "/" and ".", the shipped one.
/// Its rules get the statistics.
Recipe open_recipe(const RecipeOptions& options);

/// Gives a rule the value of a setting, if it was given. Throws Error on a value that the setting does not
/// have.
void take_word(const RecipeOptions& options, std::string_view key, Rule& rule);

/// The rule of the options. Throws Error on an option that `layout` does not have.
Rule make_rule(const RecipeOptions& options);

}  // namespace twofour
