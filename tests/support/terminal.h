#pragma once
#include <pty.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/support/program.h"

namespace twofour {

/// The text that the program writes to a terminal of so many columns, which is its stdout and stderr; 0: the
/// terminal does not say how wide it is.
inline std::string on_terminal(const std::vector<std::string>& arguments,
                               const std::vector<std::string>& environment, unsigned short columns = 0) {
  std::vector<std::string> words = program_words();
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  int terminal = -1;
  struct winsize size {};
  size.ws_col = columns;
  size.ws_row = 40;
  const pid_t child = ::forkpty(&terminal, nullptr, nullptr, columns > 0 ? &size : nullptr);
  if (child < 0) throw std::runtime_error("cannot open a terminal");
  if (child == 0) {
    ::unsetenv("NO_COLOR");
    for (const std::string& e : environment) ::putenv(const_cast<char*>(e.c_str()));
    ::execv(argv[0], argv.data());
    ::_exit(127);
  }
  std::string text;
  char buffer[4096];
  for (ssize_t got = 0; (got = ::read(terminal, buffer, sizeof buffer)) > 0;)
    text.append(buffer, static_cast<size_t>(got));
  ::close(terminal);
  ::waitpid(child, nullptr, 0);
  return text;
}

}  // namespace twofour
