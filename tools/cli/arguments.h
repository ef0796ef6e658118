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
  std::string value;               ///< "FILE", "N"; the name of a positional; empty: a flag
  std::vector<std::string> choices;
  std::string description, range, default_text;  ///< range: "1 to 4096"
  bool path = false;                             ///< the value is, or may be, a file or directory
  bool required = false, repeated = false;
  bool common = false;     ///< every command has it
  std::string group = {};  ///< its subject, if several commands have it: see ArgumentGroup
  bool operator==(const ArgumentEntry&) const = default;
};

/// A command with its arguments and subcommands.
struct CommandEntry {
  std::string name, summary, footer;
  std::vector<ArgumentEntry> positionals, options;
  std::vector<CommandEntry> commands;
};

/// An argument that a command defines. Each function changes it and returns it.
class Argument {
 public:
  Argument& required(bool is_required = true);
  /// Allows only these words; words of `unlisted` are taken, too, but not shown. A word that ends with ":N"
  /// takes any whole number for N.
  Argument& one_of(std::vector<std::string> words, const std::vector<std::string>& unlisted = {});
  /// Allows only whole numbers, or any numbers, from `least` to `most`.
  Argument& range(int least, int most);
  Argument& range(double least, double most);
  /// `problem` returns the error of a value ("expected ..., found ..."), or an empty text.
  Argument& check(std::function<std::string(const std::string&)> problem);
  /// Refuses the argument together with the option of that name ("--force"), in any order.
  Argument& excludes(const std::string& name);
  /// Sets the name of the value; FILE, DIRECTORY and PATH are completed as such.
  Argument& value_name(const std::string& name);
  /// Sets the default to show, if it is not the bound variable's own value.
  Argument& default_text(const std::string& text);
  /// A list may also be given as one value with this character between its items.
  Argument& separated_by(char separator);
  /// The value is a text that may mention URLs but is no address: GivenUrls does not change it.
  Argument& as_given();
  /// Marks an argument that every command has.
  Argument& common();

 private:
  friend class Arguments;
  Argument(CLI::Option* option, ArgumentEntry entry);
  std::string name() const;
  bool is_given() const;

  CLI::Option* option_;  ///< of the parser, which owns it
  ArgumentEntry entry_;
  std::vector<std::string> excluded_;
};

/// The arguments of a program or of one of its commands, bound to variables that must outlive parse().
class Arguments {
 public:
  /// The request of a command line.
  enum class Request { kRun, kHelp, kVersion };

  Arguments(const std::string& program, const std::string& summary);
  Arguments(const Arguments&) = delete;
  Arguments& operator=(const Arguments&) = delete;
  ~Arguments();

  /// A command below this one.
  Arguments& command(const std::string& name, const std::string& summary);
  /// A command whose arguments `define` defines when a command line names it or all commands are listed.
  void command(const std::string& name, const std::string& summary, std::function<void(Arguments&)> define);

  /// An option ("-o,--output") or, without dashes ("SRC"), a positional argument. T: std::string, int,
  /// int64_t, uint64_t, float, double, std::optional of one, or std::vector<std::string>, which may be given
  /// again. The present value of `to` is shown as the default.
  template <class T>
  Argument& option(const std::string& names, T& to, const std::string& description);
  /// An option without a value.
  Argument& flag(const std::string& names, bool& to, const std::string& description);

  /// A defined argument by its name: "--to", "SRC".
  Argument& at(const std::string& name);
  /// `name` replaces every argument defined so far, except those of `besides`: none is required, and none is
  /// allowed together with it.
  void replaces_all(const std::string& name, const std::vector<std::string>& besides);
  /// Requires exactly one of these options in a command line.
  void exactly_one_of(const std::vector<std::string>& names);

  /// Adds a text to the end of the help.
  void footer(const std::string& text);

  /// Parses a command line, the program's name first, with one of the commands. Throws Error (two lines: the
  /// error, the help to read) on an invalid one.
  Request parse(const std::vector<std::string>& words);
  /// The command that the command line named, once parsed; nullptr without one.
  const Arguments* chosen() const;

  const std::string& name() const;
  const Arguments& root() const;
  /// All arguments and commands in their order.
  CommandEntry entry() const;

 private:
  friend class ArgumentGroup;
  Arguments(Arguments& parent, const std::string& name, const std::string& summary);
  Argument& add(CLI::Option* option, ArgumentEntry entry);
  void define(std::string_view only = "") const;
  ErrorLines usage_error(const std::string& message) const;
  std::string problem_together() const;
  void check_empty_values() const;

  struct State;
  std::unique_ptr<State> state_;
};

/// While it lives, arguments that are added to a command belong to the group of that title. tools/README.md
/// describes arguments of several commands under it.
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
