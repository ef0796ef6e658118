#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "lib/recipe/settings/json_keys.h"
#include "lib/recipe/settings/rule.h"

namespace twofour {

/// Commands that take settings of rules as options.
enum RuleCommand : unsigned { kConverts = 1, kPrunes = 2, kQuantizes = 4, kPlans = 8, kCompresses = 16 };

/// The kinds of methods on which settings depend.
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

/// A part of the help text of a setting, for some commands. The help of a command is the concatenation of its
/// parts. "{block}" in a text stands for the option of that name.
struct HelpPart {
  unsigned commands;
  const char* text;
  const char* fallback = "";  ///< the value if the setting is not given
};

/// The form of a setting for users, at the prompt and in recipe files.
struct UserForm {
  enum class Form { kNone, kChoice, kFlag, kNumber, kText };
  unsigned methods = kEveryMethod;  ///< methods that take it
  unsigned files = kEveryMethod;    ///< methods among these that take it in recipe files
  struct Places {
    int option = 0, file = 0;
  } place = {};                     ///< position in the help of commands, and of recipes
  std::vector<HelpPart> help = {};  ///< a command that has no part lacks the option
  const char* file_help = "";
  const char* file_fallback = "";  ///< the first part's fallback if empty
  const char* value_name = "";     ///< if set, commands do not check the value
  std::vector<std::string> (*values)(unsigned command) = nullptr;  ///< for texts, as recipes describe them
  std::string (*expected)(std::string_view found, bool is_file) = nullptr;  ///< the message for a wrong text
  Form form = Form::kChoice;
  int most = 0;                      ///< the largest number
  bool is_of_statistics = false;     ///< commands that take statistics list it beside the options of these
  bool is_named_with_value = false;  ///< messages about a refusal show its value
  bool leaves_default = false;       ///< the default in a file leaves the rule without the setting
};

/// A row of the table of settings, which describes a field of a rule: its key, its form in twofour.json, and
/// its form for users. The row defines the option, the key of recipe files, the field of twofour.json, the
/// argument in Python and the help. A method that does not take the setting refuses it.
struct RuleSetting {
  const char* key;
  Json (*write)(const Rule&);  ///< JSON null if the rule does not set it
  /// Sets the field from a text, number or boolean as it was written. Returns false if the setting has no
  /// such value.
  bool (*take)(const JsonPlace&, const Json&, Rule&);
  UserForm asked = {.form = UserForm::Form::kNone};
  bool is_required = false;
  bool is_recorded = true;  ///< twofour.json has it

  void read(const JsonPlace& place, const Json& json, Rule& rule) const;
  bool has_user_form() const { return asked.form != UserForm::Form::kNone; }
  bool has_option(unsigned command) const;
  /// The text of the setting's value in a rule. Empty if the rule does not set it.
  std::string given(const Rule& rule) const;
  std::string option_help(unsigned command) const;
  std::string option_fallback(unsigned command) const;
  std::string file_help() const;
  /// The values in recipe files, as "a, b or c".
  std::string file_values() const;
};

/// The table of settings, in the order of twofour.json. Tests add rows.
std::vector<RuleSetting>& rule_settings();
/// The row with this key.
const RuleSetting& rule_setting(std::string_view key);
/// The settings that users can give, in the order of the help. They are for the options of a command, and for
/// recipe files.
std::vector<const RuleSetting*> option_settings(unsigned command);
std::vector<const RuleSetting*> file_settings();

/// True if two rules have the same settings. The modules that they take are not compared.
bool same_settings(const Rule& a, const Rule& b);

}  // namespace twofour
