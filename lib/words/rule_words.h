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
inline constexpr unsigned kEveryMethod = ~0u, kNoMethod = 0;

/// What help of some commands says of a word; parts are joined. "{block}" is the option of that name.
struct HelpPart {
  unsigned commands;
  const char* text;
  const char* fallback = "";  ///< what holds without the word
};

/// How people may ask by a word, at the prompt and in recipe files.
struct AskedWord {
  enum class Form { kNone, kChoice, kFlag, kNumber, kText };
  unsigned methods = kEveryMethod;  ///< that take it
  unsigned files = kEveryMethod;    ///< of these, those that take it in a recipe file
  struct Places {
    int option = 0, file = 0;
  } place = {};                     ///< in help of commands, and of recipes
  std::vector<HelpPart> help = {};  ///< commands without a part do not have the option
  const char* file_help = "";
  const char* file_fallback = "";  ///< "": that of the first part
  const char* value_name = "";     ///< a command checks no value that has a name
  std::vector<std::string> (*values)(unsigned command) = nullptr;  ///< of text, how recipes describe it
  std::string (*expected)(std::string_view found, bool is_file) = nullptr;  ///< of text that is not one
  Form form = Form::kChoice;
  int most = 0;                      ///< of a number
  bool is_of_statistics = false;     ///< commands that take statistics have it beside those
  bool is_named_with_value = false;  ///< where a method does not take it
  bool leaves_default = false;       ///< a file that says the default leaves the rule without the word
};

/// A field of a rule: its key, how twofour.json has it, and what people may ask. From a row follow the
/// option, the key of recipe files, the field of twofour.json, the argument in Python, help, and that a
/// method that does not take the word refuses it.
struct RuleWord {
  const char* key;
  Json (*write)(const Rule&);  ///< null: the rule does not say it
  /// A text, number or truth as it was written; false: the word has no such value.
  bool (*take)(const JsonPlace&, const Json&, Rule&);
  AskedWord asked = {.form = AskedWord::Form::kNone};
  bool is_required = false;
  bool is_recorded = true;  ///< in twofour.json

  void read(const JsonPlace& place, const Json& json, Rule& rule) const;
  bool is_asked() const { return asked.form != AskedWord::Form::kNone; }
  bool has_option(unsigned command) const;
  /// What a rule asks; "": nothing.
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
/// Those that people ask by, in the order of help of commands or of recipes.
std::vector<const RuleWord*> words_of_options(unsigned command);
std::vector<const RuleWord*> words_of_files();

/// Whether rules ask the same, but for the modules that they take.
bool same_words(const Rule& a, const Rule& b);

}  // namespace twofour
