#pragma once
#include <functional>
#include <string>

#include "formats/json.h"
#include "kernels/device/device.h"
#include "lib/base/findings/finding.h"
#include "lib/base/threads/progress.h"
#include "tools/console/print.h"
#include "tools/console/print_json.h"

namespace twofour {

class Argument;
class Arguments;

/// The exit codes of the program. Only commands that search for findings return kFound.
enum ExitCode { kDone = 0, kFound = 1, kTrouble = 2, kInterrupted = 130 };

/// Options that every command has.
struct Common {
  bool json = false;
  bool quiet = false;
  bool verbose = false;
  int jobs = 0;
  std::string device = "auto";
  std::string command;  ///< the command that runs
};

/// The part of a command's work that a CUDA device can do.
enum class CudaWork { kNone, kSolvers, kAll };

/// One command of a program. `setup` defines its arguments and returns the function that runs it.
struct Command {
  const char* name;
  const char* summary;
  std::function<int()> (*setup)(Arguments& args, const Common& common);
  const char* example;        ///< the first command line to try, without the program's name
  bool has_findings = false;  ///< exits with 1 on findings or differences
  CudaWork cuda = CudaWork::kNone;
};

// The commands of twofour, each in the file of its name.
std::function<int()> setup_card(Arguments& args, const Common& common);
std::function<int()> setup_completion(Arguments& args, const Common& common);
std::function<int()> setup_compress(Arguments& args, const Common& common);
std::function<int()> setup_convert(Arguments& args, const Common& common);
std::function<int()> setup_diff(Arguments& args, const Common& common);
std::function<int()> setup_repair(Arguments& args, const Common& common);
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

/// Throws Error if --device asks for cuda, for a command that runs only on the CPU. Does not start the
/// driver, because that takes longer than a small command.
void check_device(const Common& common, const std::string& command);

/// Hides all CUDA devices except the device of --device cuda:N from CUDA, so that every thread uses it. Must
/// be called before CUDA starts.
void show_one_device(const Common& common);

/// Chooses the device of a command with CUDA code by --device. "auto" is a CUDA device if there is one.
/// Throws Error if --device asks for cuda and there is no CUDA device.
Device choose_device(const Common& common);

/// Chooses the device of a command that has CUDA code only for its solvers. `solves` is true if the solvers
/// run. Throws Error like choose_device(), and also if --device asks for cuda and the solvers do not run.
Device choose_solver_device(const Common& common, bool solves);

/// The name of a device for messages: "cpu" or "cuda (NVIDIA H200)".
std::string device_text(Device device);
/// The name of a device, for a command that "auto" would run on a CUDA device. If it runs on the CPU, the
/// reason is added: "cpu (no CUDA device: ...)".
std::string device_text(const Common& common, Device device);

/// Runs `work` and shows its progress on stderr. On a terminal, this is a line that is updated. Elsewhere, it
/// is a plain line from time to time, and with --quiet nothing. A CapturedConsole gets the progress instead.
void with_progress(const Common& common, const std::function<void(Progress&)>& work);

/// Prints findings on stderr, one per line. Notes are printed only with --verbose.
void print_findings(const Common& common, const Findings& findings);
Json findings_to_json(const Findings& findings);

/// Adds --html to a command. Its value is the file of the report.
Argument& add_html_option(Arguments& args, std::string& file);

}  // namespace twofour
