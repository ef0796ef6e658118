#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "lib/words/json_words.h"
#include "lib/words/rule.h"

namespace twofour {

/// Commands that take words of rules as options.
enum RuleCommand : unsigned { kConverts = 1, kPrunes = 2, kQuantizes = 4, kPlans = 8, kCompresses = 16 };

/// What methods do, as far as words depend on it.
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
inline constexpr unsigned kEveryMethod = ~0u;

/// A text that help of some commands has. "{block}" in it is the option of that name.
struct HelpPart {
  unsigned commands;
  const char* text;
};

/// A word that people may ask by, at the prompt and in recipe files.
struct AskedWord {
  enum class Form { kChoice, kFlag, kNumber, kText };
  Form form = Form::kChoice;
  /// Of a choice, what a command takes; of text, what a file may say.
  std::vector<std::string> (*values)(unsigned command) = nullptr;
  int most = 0;                 ///< of a number
  const char* value_name = "";  ///< of text
  /// Of text that is not one, what is.
  std::string (*expected)(std::string_view found, Author author) = nullptr;
  unsigned methods = kEveryMethod;      ///< that take it
  std::vector<HelpPart> help = {};      ///< joined; commands without a part do not have the option
  std::vector<HelpPart> fallback = {};  ///< what holds without it, the first that a command has
  int option_place = 0;                 ///< in help of commands
  bool is_named_with_value = false;     ///< where a method does not take it
  bool is_of_statistics = false;        ///< commands that take statistics have it beside those
  unsigned files = 0;                   ///< methods that take it in a recipe file; 0: none does
  const char* file_help = "";
  const char* file_fallback = "";  ///< "": as the option's
  int file_place = 0;              ///< in help of recipes
  bool leaves_default = false;     ///< a file that says the default leaves the rule without the word
};

/// A field of a rule: its key, how twofour.json has it, and what people may ask. From a row follow the
/// option, the key of recipe files, the field of twofour.json, the argument in Python, help, and whether a
/// method that does not take it refuses it.
struct RuleWord {
  const char* key;
  Json (*write)(const Rule&);  ///< null: it is not in twofour.json
  void (*read)(const JsonPlace&, const Json&, Rule&);
  bool is_required = false;
  /// By a text, number or truth that people wrote; false: it is not one that the word has. Null: nobody asks.
  bool (*take)(const Json&, Author, Rule&) = nullptr;
  /// What was asked; empty: nothing.
  std::string (*given)(const Rule&) = nullptr;
  AskedWord asked = {};

  bool is_asked() const { return take != nullptr; }
  bool has_option(unsigned command) const;
  std::string option_help(unsigned command) const;
  std::string option_fallback(unsigned command) const;
  std::string file_help() const;
  /// "a, b or c"
  std::string file_values() const;
};

/// The table, in the order of twofour.json; tests add rows.
std::vector<RuleWord>& rule_words();
/// The row of a key that people ask by.
const RuleWord& rule_word(std::string_view key);
/// Those that people ask by, in the order of help of commands or of recipes.
std::vector<const RuleWord*> words_of_options(unsigned command);
std::vector<const RuleWord*> words_of_files();

/// Whether rules ask the same, but for the modules that they take.
bool same_words(const Rule& a, const Rule& b);

}  // namespace twofour
