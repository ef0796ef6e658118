#include "tools/cli/program.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <omp.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

#include "formats/error.h"
#include "kernels/device/device.h"
#include "kernels/device/isa.h"
#include "lib/base/findings/given_urls.h"
#include "lib/base/findings/problems.h"
#include "lib/base/findings/shown_url.h"
#include "lib/base/findings/version.h"
#include "lib/base/io/remote_file.h"
#include "lib/base/threads/interrupt.h"
#include "lib/base/threads/parallel.h"
#include "tools/cli/arguments.h"

namespace twofour {
namespace {

/// Gives a command's help its exit codes, examples, group and usual options.
void describe(const Program& program, const Command& command, Arguments& args) {
  args.footer(fmt::format("Exit codes: 0 done, {}2 trouble, 130 interrupted.",
                          command.has_findings ? "1 findings or differences, " : ""));
  const auto row = std::find_if(program.help.begin(), program.help.end(),
                                [&](const CommandHelp& h) { return args.name() == h.command; });
  std::vector<std::string> examples{command.example}, usual;
  if (row != program.help.end()) {
    for (const std::string& line : divided(row->examples, "\n")) {
      if (!line.empty()) examples.push_back(line);
    }
    for (const std::string& option : divided(row->usual, " ")) {
      if (!option.empty()) usual.push_back(option);
    }
  }
  for (std::string& example : examples) example = fmt::format("{} {}", program.name, example);
  args.describe(row != program.help.end() ? row->group : "", std::move(examples), std::move(usual));
}

void add_common(Arguments& args, Common& common, CudaWork cuda) {
  args.flag("--json", common.json, "Print one JSON document on stdout and nothing else").common();
  args.flag("-q,--quiet", common.quiet, "Print no progress and no findings").common();
  args.flag("-v,--verbose", common.verbose, "Print notes as well as warnings").common();
  args.option("-j,--jobs", common.jobs, "Number of threads")
      .range(1, 4096)
      .default_text("one per processor")
      .common();
  const ArgumentGroup group(args, cuda == CudaWork::kAll       ? "Devices"
                                  : cuda == CudaWork::kSolvers ? "Statistics"
                                                               : "");
  Argument& device = args.option(
      "--device", common.device,
      cuda == CudaWork::kAll
          ? "Where to compute. cuda:1 is the second CUDA device. auto uses a CUDA device if there is one"
      : cuda == CudaWork::kSolvers ? "Where weights are chosen by --stats; the bytes are the same. cuda:1 is "
                                     "the second CUDA device. auto uses "
                                     "a CUDA device if there is one. All else runs on the CPU"
                                   : "Where to compute. This command runs only on the CPU");
  if (cuda != CudaWork::kNone) {
    device.one_of({"cpu", "cuda", "auto"}, {"cuda:N"}).common();
  } else {
    device.one_of({"cpu", "auto"}, {"cuda", "cuda:N"}).common();  // check_device() explains why cuda is
                                                                  // refused
  }
}

std::string version_text(const Program& program) {
  std::string isas;
  for (const Isa isa : available_isas()) isas += fmt::format("{}{}", isas.empty() ? "" : ", ", isa_name(isa));
  const auto device = cuda_device();
  const std::string here =
      device ? fmt::format("{}, sm_{}", device->name, device->capability) : no_cuda_reason();
  const std::string_view cuda = cuda_build();
  return fmt::format("{} {} ({})\ncompiler: {}\ncpu: {}\ncuda: {}\nlibraries: {}", program.name, version(),
                     version_commit(), compiler(), isas,
                     cuda == "none" ? "none" : fmt::format("{}; {}", cuda, here), library_versions());
}

/// The lines of a message. They are "interrupted" and, if files stay, a line about them.
std::vector<std::string> lines_of(const Interrupted& e) {
  const std::string text = e.what();
  const size_t end = text.find('\n');
  if (end == text.npos) return {text};
  return {text.substr(0, end), text.substr(end + 1)};
}

/// The outcome of a command, with the message if it failed. The message has no terminal control characters
/// and no secrets of URLs.
struct Outcome {
  int code = kDone;
  std::vector<std::string> lines = {};
  ErrorKind kind = ErrorKind::kOther;
  std::string help = {};  ///< the help to show in place of the lines after the first
};

Outcome failed(int code, std::vector<std::string> lines, ErrorKind kind = ErrorKind::kOther) {
  // Commands check values of options, too, and then name the option first.
  if (!lines.empty() && lines[0].starts_with("--") && kind == ErrorKind::kOther) kind = ErrorKind::kArgument;
  for (std::string& line : lines) line = shortened(with_shown_urls(with_remote_names(std::move(line))));
  return {code, std::move(lines), kind};
}

/// Parses the command line. An error in it becomes `problem`.
std::optional<Arguments::Request> parse(Arguments& root, const std::vector<std::string>& words,
                                        Outcome& problem) {
  try {
    return root.parse(words);
  } catch (const Error& e) {
    problem = failed(kTrouble, lines_of(e), ErrorKind::kArgument);
    return std::nullopt;
  }
}

void report_error(const Program& program, const Common& common, const Outcome& outcome) {
  std::vector<std::string> lines = outcome.lines;
  if (common.json) print_json({{"error", fmt::format("{}", fmt::join(lines, "\n"))}});
  if (!outcome.help.empty()) lines.resize(1);
  for (std::string& line : lines) line = printable_line(line);
  print_coloured(stderr, Severity::kError, fmt::format("{}:", program.name));
  print_stderr(" {}\n", Lines{fmt::format("{}", fmt::join(lines, "\n"))});
  if (!outcome.help.empty()) print_stderr("\n{}", Lines{outcome.help});
}

/// Opens standard input, output and error if they are closed. Otherwise, a file of a checkpoint could get
/// their descriptor numbers and receive messages. Writes to descriptors that were opened here fail.
bool open_standard_files() {
  for (int fd = 0; fd <= 2; ++fd) {
    if (::fcntl(fd, F_GETFD) < 0 && ::open("/dev/null", O_RDONLY) != fd) return false;
  }
  return true;
}

/// True as soon as main() ends the program itself. If OpenMP's runtime cannot start a thread, it prints a
/// message and exits with 1, which would mean findings.
bool ends_by_itself = false;

void correct_exit_code() {
  if (!ends_by_itself) ::_exit(kTrouble);
}

/// The time between two calls of a CallWatch.
constexpr auto kWatchPeriod = std::chrono::milliseconds(50);

/// Returns `code`, or kTrouble if a write to stdout failed, because incomplete output must not count as done.
int checked(const Program& program, int code) {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
  print_stderr("{}: cannot write to standard output\n", program.name);
  return kTrouble;
}

/// Runs the command of a command line, whose first word is the program's name.
Outcome run(std::vector<std::string> words, const Program& program, Common& common) {
  const GivenUrls urls(words);
  // --json at any position also applies to errors in the command line itself.
  common.json = std::find(words.begin(), words.end(), "--json") != words.end();
  Arguments root(program.name, program.summary);
  root.footer(program.footer);
  root.describe("", program.examples, {});
  std::map<const Arguments*, std::pair<const Command*, std::function<int()>>> commands;
  for (const Command& c : program.commands) {
    root.command(c.name, c.summary, [&](Arguments& args) {
      commands[&args] = {&c, c.setup(args, common)};
      add_common(args, common, c.cuda);
      describe(program, c, args);
    });
  }
  try {
    Outcome problem;
    const auto request = parse(root, words, problem);
    if (!request) {
      if (words.size() == 1) problem.help = help_text(root.entry(), "", false, help_width(stderr));
      return problem;
    }
    switch (*request) {
      case Arguments::Request::kVersion:
        write_stdout(version_text(program) + "\n");  // this asks the driver, which takes a while
        return {};
      case Arguments::Request::kHelp:
      case Arguments::Request::kHelpAll:
        write_stdout(help_text(root.entry(), root.chosen() != nullptr ? root.chosen()->name() : "",
                               request == Arguments::Request::kHelpAll, help_width(stdout)));
        return {};
      case Arguments::Request::kRun:
        break;
    }
    if (common.jobs == 0) common.jobs = omp_get_num_procs();
    omp_set_num_threads(common.jobs);
    const auto& [command, work] = commands.at(root.chosen());
    common.command = command->name;
    if (command->cuda == CudaWork::kNone) check_device(common, command->name);
    show_one_device(common);
    return {work()};
  } catch (const Interrupted& e) {
    return failed(kInterrupted, lines_of(e));
  } catch (const Error& e) {
    return failed(kTrouble, lines_of(e), kind_of(e));
  } catch (const std::bad_alloc&) {
    return failed(kTrouble, {"out of memory"});
  } catch (const std::filesystem::filesystem_error& e) {
    return failed(kTrouble, {fmt::format("{}: {}", e.path1().string(), e.code().message())});
  } catch (const std::exception& e) {
    return failed(kTrouble, {fmt::format("unexpected: {}", e.what())});
  }
}

/// Makes signals ask the run to clean up. A second Ctrl-C ends the program at once. A second hangup does not,
/// since many shells send it twice.
void catch_signals() {
  struct sigaction action {};
  action.sa_handler = [](int) { request_interrupt(); };
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  struct sigaction before {};
  action.sa_flags = 0;
  sigaction(SIGHUP, nullptr, &before);
  if (before.sa_handler != SIG_IGN) sigaction(SIGHUP, &action, nullptr);  // ignored under nohup
  // A write beyond the file size limit must be an error of write() and must not end the program.
  std::signal(SIGXFSZ, SIG_IGN);
}

}  // namespace

int run_program(int argc, char** argv, const Program& program) {
  if (!open_standard_files()) return kTrouble;
  std::atexit(correct_exit_code);
  catch_signals();
  // All shards of a checkpoint stay open, and there may be more than a thousand.
  struct rlimit files {};
  if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
  }
  Common common;
  const Outcome outcome = run({argv, argv + argc}, program, common);
  if (!outcome.lines.empty()) report_error(program, common, outcome);
  const int code = checked(program, outcome.code);
  ends_by_itself = true;
  return code;
}

CallResult call_program(const Program& program, std::vector<std::string> words, const CallWatch& watch) {
  static std::timed_mutex one_at_a_time;
  thread_local bool is_calling = false;
  if (is_calling)
    throw Error("expected one command at a time, found a command that a progress callback called");
  std::unique_lock turn(one_at_a_time, std::defer_lock);
  while (!turn.try_lock_for(kWatchPeriod)) {
    if (!watch({"waiting"})) return {kInterrupted, "interrupted"};
  }
  is_calling = true;
  struct Ended {
    ~Ended() { is_calling = false; }
  } const at_end;
  if (!watch({})) return {kInterrupted, "interrupted"};
  CallResult result;
  ShownProgress last;
  std::mutex mutex;
  std::condition_variable ended;
  CapturedConsole* console = nullptr;  // while the command runs
  bool is_ended = false;
  words.insert(words.begin(), program.name);
  const auto work = [&] {
    CapturedConsole here;
    {
      const std::lock_guard lock(mutex);
      console = &here;
    }
    Common common;
    const Outcome outcome = run(words, program, common);
    const std::lock_guard lock(mutex);
    last = here.progress();
    result = {outcome.code,
              outcome.lines.empty() ? here.take_text() : fmt::format("{}", fmt::join(outcome.lines, "\n")),
              outcome.kind};
    console = nullptr;
    is_ended = true;
    ended.notify_all();
  };
  {
    const std::jthread thread = start_thread(work);
    std::unique_lock lock(mutex);
    while (!ended.wait_for(lock, kWatchPeriod, [&] { return is_ended; })) {
      const ShownProgress now = console != nullptr ? console->progress() : ShownProgress{};
      lock.unlock();
      if (!watch(now)) request_interrupt();
      lock.lock();
    }
  }
  clear_interrupt();
  if (last.total > 0) watch(last);
  return result;
}

}  // namespace twofour
