#pragma once
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "lib/budget/budget.h"
#include "lib/plan/plan.h"
#include "lib/words/rule_words.h"
#include "tools/cli/arguments.h"
#include "tools/cli/command.h"

namespace twofour {

/// What says how a checkpoint is to be written, apart from the choice of modules and the size of files.
struct RecipeOptions {
  /// What a word of rules was given as an option: by what its row says, a text, a number or a truth.
  struct Said {
    std::string text;
    int64_t number = -1;
    bool flag = false;
  };
  std::string layout;
  std::map<std::string_view, Said> words;  ///< by key; those of the command
  std::string recipe;      ///< convert: file or name of a recipe, in place of everything else here
  std::string statistics;  ///< a statistics file
  bool strict_statistics = false;
  bool collects_statistics = false;  ///< compress: the command collects them before weights are chosen
  Budget budget;                     ///< quantize: how much is pruned
  std::string mask;                  ///< of others, in place of masks that are chosen
  std::string html;                  ///< quantize: a report on what pruning costs

  /// The text of a word; "" where it was not given.
  std::string text(std::string_view key) const;
};

/// Adds the options of a command: --to and --recipe of those that convert, and words of rules. --include,
/// --exclude and --also must be there before.
void add_recipe_options(Arguments& args, RecipeOptions& options, RuleCommand command);

/// Adds a word of rules.
void add_word(Arguments& args, RecipeOptions& options, RuleCommand command, std::string_view key);

/// Adds --stats and what says how weights are chosen by it, of one of the commands; rules of convert say that
/// themselves.
void add_statistics_options(Arguments& args, RecipeOptions& options, RuleCommand command);

/// Adds --mask, of one of the commands.
void add_mask_option(Arguments& args, RecipeOptions& options, RuleCommand command);

/// Adds --budget, --max-loss and --html.
void add_budget_options(Arguments& args, RecipeOptions& options, RuleCommand command);

/// The option of that name excludes all that says how rules choose and change modules.
void exclude_rule_words(Arguments& args, const std::string& option);

/// The recipe of a file of that name or, for a name without "/" and ".", else the shipped one. Its rules get
/// the statistics.
Recipe open_recipe(const RecipeOptions& options);

/// Gives a rule a word as it was given, if it was. Throws Error on a value that it does not have.
void take_word(const RecipeOptions& options, std::string_view key, Rule& rule);

/// The rule that they ask for. Throws Error on an option that `layout` does not have.
Rule make_rule(const RecipeOptions& options);

}  // namespace twofour
