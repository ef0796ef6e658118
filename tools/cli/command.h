#pragma once
#include <fmt/format.h>

#include <cstdio>
#include <functional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "formats/json.h"
#include "kernels/device/device.h"
#include "lib/findings/finding.h"
#include "lib/threads/progress.h"
#include "tools/call/console.h"

namespace twofour {

class Argument;
class Arguments;

/// Exit codes of the program; findings count only for commands that look for them.
enum ExitCode { kDone = 0, kFound = 1, kTrouble = 2, kInterrupted = 130 };

/// Options that every command has.
struct Common {
  bool json = false;
  bool quiet = false;
  bool verbose = false;
  int jobs = 0;
  std::string device = "auto";
  std::string command;  ///< that runs
};

/// What a command has for a CUDA device.
enum class CudaWork { kNone, kSolvers, kAll };

/// One command of a program. `setup` defines its arguments and returns what runs it.
struct Command {
  const char* name;
  const char* summary;
  std::function<int()> (*setup)(Arguments& args, const Common& common);
  const char* example;        ///< a command line, without the program's name
  bool has_findings = false;  ///< whether findings or differences end it with 1
  CudaWork cuda = CudaWork::kNone;
};

// Of twofour, each in the file of its name.
std::function<int()> setup_card(Arguments& args, const Common& common);
std::function<int()> setup_completion(Arguments& args, const Common& common);
std::function<int()> setup_compress(Arguments& args, const Common& common);
std::function<int()> setup_convert(Arguments& args, const Common& common);
std::function<int()> setup_diff(Arguments& args, const Common& common);
std::function<int()> setup_drop(Arguments& args, const Common& common);
std::function<int()> setup_eval(Arguments& args, const Common& common);
std::function<int()> setup_generate(Arguments& args, const Common& common);
std::function<int()> setup_graft(Arguments& args, const Common& common);
std::function<int()> setup_help(Arguments& args, const Common& common);
std::function<int()> setup_inspect(Arguments& args, const Common& common);
std::function<int()> setup_lint(Arguments& args, const Common& common);
std::function<int()> setup_man(Arguments& args, const Common& common);
std::function<int()> setup_merge(Arguments& args, const Common& common);
std::function<int()> setup_plan(Arguments& args, const Common& common);
std::function<int()> setup_prune(Arguments& args, const Common& common);
std::function<int()> setup_quantize(Arguments& args, const Common& common);
std::function<int()> setup_recipes(Arguments& args, const Common& common);
std::function<int()> setup_stats(Arguments& args, const Common& common);
std::function<int()> setup_run(Arguments& args, const Common& common);
std::function<int()> setup_synth(Arguments& args, const Common& common);
std::function<int()> setup_validate(Arguments& args, const Common& common);

/// Throws Error where --device asks for cuda: `command` runs on the CPU alone. Starts no driver, which takes
/// longer than a small command.
void check_device(const Common& common, const std::string& command);

/// Hides all CUDA devices but the one that --device cuda:N names from CUDA, which must not have started yet:
/// so every thread has it.
void show_one_device(const Common& common);

/// Where a command with CUDA code runs, as --device says; auto is a CUDA device if there is one. Throws Error
/// if --device asks for cuda and there is no device.
Device choose_device(const Common& common);

/// The same of a command whose solvers alone have CUDA code; `solves`: they run. Throws Error too if --device
/// asks for cuda and they do not.
Device choose_solver_device(const Common& common, bool solves);

/// The device for people: "cpu" or "cuda (NVIDIA H200)".
std::string device_text(Device device);
/// The same of a command that auto has on a device, and why it is not there: "cpu (no CUDA device: ...)".
std::string device_text(const Common& common, Device device);

/// Runs `work` while showing its progress on stderr: a line that renews itself on a terminal, a plain line
/// now and then elsewhere, nothing with --quiet. A CapturedConsole has the progress instead.
void with_progress(const Common& common, const std::function<void(Progress&)>& work);

/// Findings on stderr, a line each; notes only with --verbose.
void print_findings(const Common& common, const Findings& findings);
Json findings_to_json(const Findings& findings);

/// Adds --html to a command: the file of its report.
Argument& add_html_option(Arguments& args, std::string& file);

/// Writes `text` to stdout or stderr, in the colour of a severity if that is a terminal with colours (TERM is
/// not dumb) and NO_COLOR is not set.
void print_coloured(std::FILE* to, Severity severity, std::string_view text);

/// The version of every document of --json, described in tools/JSON.md. It counts up when a field changes or
/// goes; new fields leave it.
inline constexpr int kSchemaVersion = 1;

/// One document on stdout: an object, after its schema_version.
void print_json(const Json& json);

/// The elements of a list that a document has under a name.
struct JsonList {
  const char* name;
  size_t size;
  std::function<Json(size_t)> element;
};
/// The same of a document that ends with long lists, an element a line: as one document in memory they would
/// take several times what they are made from.
void print_json(const Json& head, const std::vector<JsonList>& lists);

/// `text` with what a terminal would obey or hide in place of showing it as \\xNN or \\u{N}, as names from
/// hostile files may have it: control characters but line ends, bytes that are no UTF-8, characters without
/// width and those that turn the direction of what follows (Unicode's Bidi_Control).
std::string printable(std::string_view text);
/// The same with line ends shown as \\x0A: of a name, which could else forge lines of ours.
std::string printable_line(std::string_view text);

/// Lines of ours as an argument of print_stdout() and print_stderr(), their names made printable already.
struct Lines {
  std::string text;
};

/// An argument of print_stdout() or print_stderr(): texts keep to their line, for they may be or hold names
/// from files.
template <class T>
decltype(auto) print_argument(const T& value) {
  if constexpr (std::is_same_v<T, Lines>) {
    return std::string_view(value.text);
  } else if constexpr (std::is_convertible_v<const T&, std::string_view>) {
    return printable_line(value);
  } else {
    return (value);
  }
}

template <class... Arguments>
using PrintFormat =
    fmt::format_string<std::remove_cvref_t<decltype(print_argument(std::declval<const Arguments&>()))>...>;

template <class... Values>
std::string formatted(fmt::string_view format, const Values&... values) {
  return fmt::vformat(format, fmt::make_format_args(values...));
}

/// Prints to stdout, with control characters made harmless, and line ends in arguments too. main() reports a
/// failed write at the end.
template <class... Arguments>
void print_stdout(PrintFormat<Arguments...> format, const Arguments&... arguments) {
  write_stdout(printable(formatted(format, print_argument(arguments)...)));
}

/// Prints to stderr; control characters and line ends in arguments are made harmless. A failed write is
/// ignored.
template <class... Arguments>
void print_stderr(PrintFormat<Arguments...> format, const Arguments&... arguments) {
  write_stderr(formatted(format, print_argument(arguments)...));
}

/// A line of a message with its middle left out where a word has more than 300 characters or the line more
/// than 2000: arguments and hostile names may be of any length.
std::string shortened(const std::string& line);

/// "12.9 GB", decimal.
std::string format_bytes(uint64_t bytes);

}  // namespace twofour
