#pragma once
#include <cstdio>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lib/base/findings/error_kinds.h"
#include "tools/cli/arguments.h"
#include "tools/cli/command.h"
#include "tools/console/console.h"

namespace twofour {

/// The contents of the short help of a command. Rows of one group follow each other, in the order of use.
struct CommandHelp {
  const char* command;
  const char* group;          ///< title above the command in the program's help
  const char* usual = "";     ///< options of the short help, in its order, divided by blanks; empty for all
  const char* examples = "";  ///< more command lines, one a line, without the program's name
};

/// A program with commands.
struct Program {
  const char* name;
  const char* summary;
  std::span<const Command> commands;
  std::string footer;                      ///< the end of its help
  std::span<const CommandHelp> help = {};  ///< commands without a row are one group
  std::vector<std::string> examples = {};  ///< command lines to begin with
};

/// Does the work of main(). Parses the command line, runs the command, reports errors on stderr (with --json,
/// also on stdout) and returns the exit code. The first SIGINT, SIGTERM or SIGHUP asks the command to clean
/// up and end.
int run_program(int argc, char** argv, const Program& program);

/// The result of a command that was called as a function.
struct CallResult {
  int code = 0;                        ///< an ExitCode
  std::string text;                    ///< the output on stdout, or an error message
  ErrorKind kind = ErrorKind::kOther;  ///< kind of the error
};

/// A function that receives the progress of a call. It returns true to continue the call and false to stop
/// it.
using CallWatch = std::function<bool(const ShownProgress&)>;

/// Runs a command inside a process of another program. `words` are the command's name and arguments. Prints
/// nothing and handles no signals. The command runs on another thread. This thread calls `watch` before the
/// command, about 20 times a second while it runs, and after it. Only one call runs at a time. Further calls
/// wait. Throws Error if no thread can be started.
CallResult call_program(const Program& program, std::vector<std::string> words, const CallWatch& watch);

/// The text of --help, for a command or (without a name) for the program. With `all`, a command's text has
/// all options with all words, as --help-all. Lines have at most `width` characters where words allow it.
/// Throws Error on an unknown command.
std::string help_text(const CommandEntry& root, const std::string& command, bool all, size_t width);
/// The width of help texts, at most 100 characters. A terminal at `stream` may be narrower.
size_t help_width(std::FILE* stream);

/// `text`, divided at each `by`.
std::vector<std::string> divided(const std::string& text, const std::string& by);
/// The choices of an argument in braces, or the name of its value. Empty for a flag.
std::string value_text(const ArgumentEntry& entry);

/// The help of the program and all its commands in Markdown. It is the text of tools/README.md.
std::string markdown_text(const CommandEntry& root);

/// The text after the name of a program or command: "COMMAND [OPTIONS]", "[OPTIONS] SRC [DST]".
std::string usage_text(const CommandEntry& entry);
/// The limits of an argument as a text to follow the description: " (1 to 4096; default: 4)". Empty if the
/// argument has no limits.
std::string limits_text(const ArgumentEntry& entry);

/// Scripts that complete the program's command line in a shell.
std::string bash_completion(const CommandEntry& root);
std::string zsh_completion(const CommandEntry& root);
std::string fish_completion(const CommandEntry& root);

/// Manual pages in man(7)'s macros, by file name. They are twofour.1 and one page per command.
std::vector<std::pair<std::string, std::string>> manual_pages(const CommandEntry& root);

}  // namespace twofour
