#pragma once
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace twofour {

struct ErrorLines;

/// An option, a flag or (without names) a positional argument, for help, completion and manual pages.
struct ArgumentEntry {
  std::vector<std::string> names;  ///< "-j", "--jobs"
  std::string value;               ///< "FILE", "N", or a positional's name; empty for a flag
  std::vector<std::string> choices;
  std::string description, range, default_text;  ///< a range is "1 to 4096"
  bool path = false;                             ///< the value is, or may be, a file or directory
  bool required = false, repeated = false;
  bool common = false;     ///< every command has it
  std::string group = {};  ///< subject shared by commands, see ArgumentGroup
  /// Values that completion offers beside `choices`. Others are valid, too.
  std::vector<std::string> suggestions = {};
  bool is_list = false;  ///< a value may be a list with commas
  bool operator==(const ArgumentEntry&) const = default;
};

/// A command with its arguments and subcommands.
struct CommandEntry {
  std::string name, summary, footer;
  std::vector<ArgumentEntry> positionals, options;
  std::vector<CommandEntry> commands;
  std::vector<std::string> examples = {};  ///< command lines, with the program's name
  std::string group = {};                  ///< title of the commands that the help lists together
  std::vector<std::string> usual = {};     ///< options of the short help, in its order; if empty, all
};

/// An argument that a command defines. Each function changes it and returns it.
class Argument {
 public:
  Argument& required(bool is_required = true);
  /// Allows only `words` and `unlisted` as values. Words of `unlisted` are not shown in the help. A word that
  /// ends with ":N" stands for every whole number in place of N.
  Argument& one_of(std::vector<std::string> words, const std::vector<std::string>& unlisted = {});
  /// Makes completion offer `words`. They do not limit the values.
  Argument& suggest(std::vector<std::string> words);
  /// Allows only whole numbers, or any numbers, from `least` to `most`.
  Argument& range(int least, int most);
  Argument& range(double least, double most);
  /// Checks values. `problem` returns the error of a value ("expected ..., found ..."), or an empty text for
  /// a valid value.
  Argument& check(std::function<std::string(const std::string&)> problem);
  /// Refuses the combination of the argument and the option of that name ("--force"), in any order.
  Argument& excludes(const std::string& name);
  /// Sets the name of the value. Values named FILE, DIRECTORY and PATH are completed as files, directories
  /// and paths.
  Argument& value_name(const std::string& name);
  /// Leaves out that the argument may be given again, since its description states how often.
  Argument& tells_count();
  /// Sets the default to show, if it differs from the bound variable's value.
  Argument& default_text(const std::string& text);
  /// Also allows a list as one value with `separator` between its items.
  Argument& separated_by(char separator);
  /// Marks a value that may mention URLs but is not an address. parse() gets it as the user typed it, without
  /// the changes of GivenUrls.
  Argument& as_given();
  /// Makes parse() replace the index or config.json of a checkpoint by the checkpoint's directory.
  Argument& as_checkpoint();
  /// Marks an argument that every command has.
  Argument& common();

 private:
  friend class Arguments;
  Argument(CLI::Option* option, ArgumentEntry entry);
  std::string name() const;
  bool is_given() const;

  CLI::Option* option_;  ///< owned by the parser
  ArgumentEntry entry_;
  std::vector<std::string> excluded_;
};

/// The arguments of a program or of one of its commands, bound to variables that must outlive parse().
class Arguments {
 public:
  /// The request of a command line.
  enum class Request { kRun, kHelp, kHelpAll, kVersion };

  Arguments(const std::string& program, const std::string& summary);
  Arguments(const Arguments&) = delete;
  Arguments& operator=(const Arguments&) = delete;
  ~Arguments();

  /// Adds a subcommand and returns its arguments.
  Arguments& command(const std::string& name, const std::string& summary);
  /// Adds a subcommand whose arguments are defined later. `define` is called when a command line names the
  /// subcommand, or when all commands are listed.
  void command(const std::string& name, const std::string& summary, std::function<void(Arguments&)> define);

  /// Adds an option ("-o,--output") or, without dashes ("SRC"), a positional argument. T is std::string, int,
  /// int64_t, uint64_t, float, double, a std::optional of one of these, or std::vector<std::string> for an
  /// argument that may be repeated. The present value of `to` is shown as the default.
  template <class T>
  Argument& option(const std::string& names, T& to, const std::string& description);
  /// Adds an option without a value.
  Argument& flag(const std::string& names, bool& to, const std::string& description);

  /// The argument with a name: "--to", "SRC". It must be defined already.
  Argument& at(const std::string& name);
  /// Makes the argument `name` replace every argument that is defined so far, except those in `besides`. With
  /// `name`, the replaced arguments are not required and not allowed.
  void replaces_all(const std::string& name, const std::vector<std::string>& besides);
  /// Requires exactly one of these options in a command line.
  void exactly_one_of(const std::vector<std::string>& names);

  /// Adds a text to the end of the help.
  void footer(const std::string& text);
  /// Sets the group, the examples and the usual options of a command's help, see CommandEntry.
  void describe(std::string group, std::vector<std::string> examples, std::vector<std::string> usual);

  /// Parses a command line, which begins with the program's name. Options may precede the command's name.
  /// Throws Error on an invalid command line. It has two lines, which are the error and the help to read.
  Request parse(const std::vector<std::string>& words);
  /// The command that the command line names, after parse(). Null if it names no command.
  const Arguments* chosen() const;

  const std::string& name() const;
  const Arguments& root() const;
  /// All arguments and commands, in the order of their definition.
  CommandEntry entry() const;

 private:
  friend class ArgumentGroup;
  Arguments(Arguments& parent, const std::string& name, const std::string& summary);
  Argument& add(CLI::Option* option, ArgumentEntry entry);
  void define(std::string_view only = "") const;
  size_t find_command(const std::vector<std::string>& words) const;
  bool is_of_commands(const std::vector<std::string>& words) const;
  ErrorLines usage_error(const std::string& message) const;
  std::string problem_together() const;
  void check_empty_values() const;

  struct State;
  std::unique_ptr<State> state_;
};

/// While this object lives, arguments that are added to `args` belong to the group `title`. tools/README.md
/// describes arguments of several commands under that title.
class ArgumentGroup {
 public:
  ArgumentGroup(Arguments& args, const char* title);
  ~ArgumentGroup();
  ArgumentGroup(const ArgumentGroup&) = delete;
  ArgumentGroup& operator=(const ArgumentGroup&) = delete;

 private:
  Arguments& args_;
  std::string before_;
};

}  // namespace twofour
