#pragma once
#include <string>
#include <vector>

#include "tools/cli/command.h"

namespace twofour {

/// An option or, without names, a positional argument, as help, completion and manual pages tell of it.
struct OptionEntry {
  std::vector<std::string> names;  ///< "-j", "--jobs"
  std::string value;               ///< "FILE", "INT"; of a positional its name; empty: a flag
  std::vector<std::string> choices;
  std::string description;
  bool path = false;  ///< the value is, or may be, a file or directory
  bool required = false, repeated = false;
};

/// A command and, below it, its own.
struct CommandEntry {
  std::string name, summary, footer;
  std::vector<OptionEntry> positionals, options;
  std::vector<CommandEntry> commands;
};

/// All that the parser of the command line knows, in the order in which it was told.
CommandEntry command_table(const CLI::App& root);

/// Scripts that complete the program's command line in a shell.
std::string bash_completion(const CommandEntry& root);
std::string zsh_completion(const CommandEntry& root);
std::string fish_completion(const CommandEntry& root);

/// Manual pages in man(7)'s macros, by file name: twofour.1 and one for each command.
std::vector<std::pair<std::string, std::string>> manual_pages(const CommandEntry& root);

}  // namespace twofour
