#pragma once
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tools/cli/arguments.h"
#include "tools/cli/command.h"
#include "tools/console/console.h"

namespace twofour {

/// A program with commands.
struct Program {
  const char* name;
  const char* summary;
  std::span<const Command> commands;
  std::string footer;  ///< the end of its help
};

/// Does the work of main(). Parses the command line, runs the command, reports errors on stderr (with --json,
/// also on stdout) and returns the exit code. The first SIGINT, SIGTERM or SIGHUP asks the command to clean
/// up and end.
int run_program(int argc, char** argv, const Program& program);

/// The result of a command that was called as a function.
struct CallResult {
  int code = 0;      ///< an ExitCode
  std::string text;  ///< the output on stdout, or an error message
};

/// A function that receives the progress of a call. It returns true to continue the call and false to stop
/// it.
using CallWatch = std::function<bool(const ShownProgress&)>;

/// Runs a command inside a process of another program. `words` are the command's name and arguments. Prints
/// nothing and handles no signals. The command runs on another thread. This thread calls `watch` before the
/// command, about 20 times a second while it runs, and after it. Only one call runs at a time. Further calls
/// wait. Throws Error if no thread can be started.
CallResult call_program(const Program& program, std::vector<std::string> words, const CallWatch& watch);

/// The text of --help, for a command or (without a name) for the program. Throws Error on an unknown command.
std::string help_text(const CommandEntry& root, const std::string& command);

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
