#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "lib/recipe/words/json_words.h"
#include "lib/recipe/words/rule.h"

namespace twofour {

/// Commands that take settings of rules as options.
enum RuleCommand : unsigned { kConverts = 1, kPrunes = 2, kQuantizes = 4, kPlans = 8, kCompresses = 16 };

/// Kinds of methods, as far as settings depend on them.
enum MethodKind : unsigned {
  kToLayout = 1,
  kToDialect = 2,
  kToFp8 = 4,
  kToMx = 8,
  kToBf16 = 16,
  kKeeps = 32,
  kDropsCodes = 64,
  kToNvfp4 = 128
};
inline constexpr unsigned kEveryMethod = ~0u, kNoMethod = 0;

/// The text about a setting in the help of some commands; parts are joined. "{block}" is the option of that
/// name.
struct HelpPart {
  unsigned commands;
  const char* text;
  const char* fallback = "";  ///< the value without the setting
};

/// The form of a setting for users, at the prompt and in recipe files.
struct AskedWord {
  enum class Form { kNone, kChoice, kFlag, kNumber, kText };
  unsigned methods = kEveryMethod;  ///< that take it
  unsigned files = kEveryMethod;    ///< of these, methods that take it in a recipe file
  struct Places {
    int option = 0, file = 0;
  } place = {};                     ///< in help of commands, and of recipes
  std::vector<HelpPart> help = {};  ///< a command without a part does not have the option
  const char* file_help = "";
  const char* file_fallback = "";  ///< "": the fallback of the first part
  const char* value_name = "";     ///< commands do not check a value that has a name
  std::vector<std::string> (*values)(unsigned command) = nullptr;  ///< of text, how recipes describe it
  std::string (*expected)(std::string_view found, bool is_file) = nullptr;  ///< of a text that is no value
  Form form = Form::kChoice;
  int most = 0;                      ///< the largest number
  bool is_of_statistics = false;     ///< commands that take statistics list it beside the options of these
  bool is_named_with_value = false;  ///< in messages of methods that do not take it
  bool leaves_default = false;       ///< the default in a file leaves the rule without the setting
};

/// A field of a rule: its key, its form in twofour.json, and its form for users. The row defines the option,
/// the key of recipe files, the field of twofour.json, the argument in Python and the help; a method that
/// does not take the setting refuses it.
struct RuleWord {
  const char* key;
  Json (*write)(const Rule&);  ///< null: the rule does not set it
  /// Takes a text, number or boolean as it was written; false: the setting has no such value.
  bool (*take)(const JsonPlace&, const Json&, Rule&);
  AskedWord asked = {.form = AskedWord::Form::kNone};
  bool is_required = false;
  bool is_recorded = true;  ///< in twofour.json

  void read(const JsonPlace& place, const Json& json, Rule& rule) const;
  bool is_asked() const { return asked.form != AskedWord::Form::kNone; }
  bool has_option(unsigned command) const;
  /// The value of the setting in a rule; "": none.
  std::string given(const Rule& rule) const;
  std::string option_help(unsigned command) const;
  std::string option_fallback(unsigned command) const;
  std::string file_help() const;
  /// "a, b or c"
  std::string file_values() const;
};

/// The table, in the order of twofour.json; tests add rows.
std::vector<RuleWord>& rule_words();
/// The row of a key.
const RuleWord& rule_word(std::string_view key);
/// Settings for users, in the order of the help of commands or of recipes.
std::vector<const RuleWord*> words_of_options(unsigned command);
std::vector<const RuleWord*> words_of_files();

/// True if rules have the same settings, except for the modules that they take.
bool same_words(const Rule& a, const Rule& b);

}  // namespace twofour
