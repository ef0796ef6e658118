#include "tools/bench/bench.h"

#include <fmt/format.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>

#include "formats/error.h"
#include "formats/layouts/layouts.h"
#include "lib/base/io/file.h"
#include "lib/base/threads/interrupt.h"
#include "lib/base/threads/stopwatch.h"

extern char** environ;

namespace twofour {

namespace fs = std::filesystem;

Spread spread_of(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return {values.front(), n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2, values.back()};
}

ProcessRun run_process(const std::vector<std::string>& arguments) {
  std::vector<char*> argv;
  for (const std::string& a : arguments) argv.push_back(const_cast<char*>(a.c_str()));
  argv.push_back(nullptr);
  const Stopwatch watch;
  pid_t child = 0;
  const int error = ::posix_spawnp(&child, argv[0], nullptr, nullptr, argv.data(), environ);
  if (error != 0) throw Error(fmt::format("{}: cannot start: {}", arguments[0], system_message(error)));
  int status = 0;
  struct rusage usage {};
  while (::wait4(child, &status, 0, &usage) < 0 && errno == EINTR) {
  }
  ProcessRun run{watch.seconds(), static_cast<uint64_t>(usage.ru_maxrss) * 1024};
  check_interrupt();
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    throw Error(fmt::format("{}: expected it to end with 0, found {}", fmt::join(arguments, " "),
                            WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status)));
  }
  return run;
}

fs::path twofour_program() {
  const fs::path program = fs::read_symlink("/proc/self/exe").parent_path() / "twofour";
  if (!fs::exists(program))
    throw Error(fmt::format("{}: expected the program to measure, found none", program.string()));
  return program;
}

std::vector<std::string> convert_targets() {
  std::vector<std::string> targets;
  for_each_layout([&]<class L>() { targets.push_back(L::name); });
  targets.insert(targets.end(), {"nvfp4", "bf16", "fp8"});
  return targets;
}

Json spread_to_json(const Spread& s) { return {{"min", s.min}, {"median", s.median}, {"max", s.max}}; }

std::string spread_text(const Spread& s) {
  return fmt::format("{:.2f} ({:.2f} to {:.2f})", s.median, s.min, s.max);
}

WorkDirectory::WorkDirectory(const fs::path& work) {
  std::string name = (work / "twofour-bench-XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr)
    throw Error(fmt::format("{}: cannot make a directory in it", work.string()));
  path_ = name;
}

WorkDirectory::~WorkDirectory() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

}  // namespace twofour
