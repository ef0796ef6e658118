#include <fcntl.h>
#include <fmt/format.h>
#include <omp.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <system_error>

#include "formats/error.h"
#include "kernels/device/device.h"
#include "kernels/device/isa.h"
#include "lib/error_lines.h"
#include "lib/threads/interrupt.h"
#include "lib/findings/version.h"
#include "tools/cli/command.h"
#include "tools/cli/suggest.h"

namespace twofour {
namespace {

constexpr Command kCommands[] = {
    {"inspect", "Show what a checkpoint or artifact holds", setup_inspect, "inspect checkpoint --stats"},
    {"lint", "Find known disasters in a checkpoint or artifact", setup_lint,
     "lint checkpoint --html report.html", true},
    {"prune", "Prune a checkpoint to 2:4 or 4:8-paired, in its own dialect", setup_prune,
     "prune checkpoint pruned --pattern 2:4"},
    {"quantize", "Quantize BF16, FP16, FP32, FP8 or MXFP4 weights to NVFP4", setup_quantize,
     "quantize bf16-checkpoint nvfp4-checkpoint --block-scale four-over-six"},
    {"convert", "Convert a checkpoint to a layout that kernels read", setup_convert,
     "convert checkpoint artifact --to v7", false, true},
    {"plan", "Plan a conversion that several tasks or machines share", setup_plan,
     "plan checkpoint artifact --to v7 --tasks 16 -o plan.json"},
    {"merge", "Complete what the tasks of a plan have written", setup_merge, "merge artifact"},
    {"diff", "Compare two checkpoints or artifacts as numbers, across dialects and layouts", setup_diff,
     "diff checkpoint artifact --tolerance 0.001", true},
    {"validate", "Prove an artifact, from its source or by its own hashes", setup_validate,
     "validate artifact --source checkpoint", true, true},
    {"run", "Run an MoE layer of an artifact on given tokens", setup_run,
     "run artifact --layer 0 --random 8 --seed 1 -o output.safetensors", false, true},
    {"synth", "Make a checkpoint with the shapes of a known model", setup_synth,
     "synth checkpoint --shape qwen3-next --layers 1 --experts 16"},
    {"bench", "Measure commands and kernels against cp, cat and memcpy", setup_bench,
     "bench convert --to v7 --rounds 3", false, true},
    {"completion", "Write what completes command lines in a shell", setup_completion,
     "completion bash > ~/.local/share/bash-completion/completions/twofour"},
    {"man", "Write the manual pages", setup_man, "man ~/.local/share/man/man1"},
};

/// What stands below a command's options: its own notes, an example, how it ends.
std::string footer(const Command& command, const std::string& notes) {
  return fmt::format("{}{}Example:\n  twofour {}\n\nExit codes: 0 done, {}2 trouble, 130 interrupted.", notes,
                     notes.empty() ? "" : "\n\n", command.example,
                     command.finds ? "1 findings or differences, " : "");
}

/// An option that was given nothing, as by a variable that is not set; such a run would do less than it was
/// asked.
std::optional<std::string> empty_value(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& value : option->results()) {
      if (value.empty()) return option->get_name();
    }
  }
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (auto name = empty_value(*sub)) return name;
  }
  return std::nullopt;
}

void add_common(CLI::App& app, Common& common, bool cuda) {
  const char* group = "Common";
  app.add_flag("--json", common.json, "One JSON document on stdout, nothing else there")->group(group);
  app.add_flag("-q,--quiet", common.quiet, "No progress, no findings")->group(group);
  app.add_flag("-v,--verbose", common.verbose, "Notes too, not only warnings")->group(group);
  app.add_option("-j,--jobs", common.jobs, "Threads (default: one a processor)")
      ->check(CLI::Range(1, 4096))
      ->group(group);
  CLI::Validator devices = CLI::IsMember({"cpu", "cuda", "auto"});
  if (!cuda) devices.description("{cpu,auto}");  // check_device says why the third is none here
  app.add_option("--device", common.device,
                 cuda ? "cpu, cuda or auto: what is faster (convert: cpu; run and validate: cuda where there "
                        "is a device)"
                      : "cpu or auto, which is cpu here")
      ->check(devices)
      ->group(group);
}

std::string version_text() {
  std::string isas;
  for (const Isa isa : available_isas()) isas += fmt::format("{}{}", isas.empty() ? "" : ", ", isa_name(isa));
  const auto device = cuda_device();
  const std::string here =
      device ? fmt::format("{}, sm_{}", device->name, device->capability) : no_cuda_reason();
  constexpr std::string_view kCuda = TWOFOUR_CUDA_BUILD;
  return fmt::format("twofour {} ({})\ncompiler: {}\ncpu: {}\ncuda: {}\nlibraries: {}", version(),
                     version_commit(), TWOFOUR_COMPILER, isas,
                     kCuda == "none" ? "none" : fmt::format("{}; {}", kCuda, here), TWOFOUR_LIBRARIES);
}

std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

/// A first word that is no command below `app`, as in bench; empty where there is none.
std::string unknown_below(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (!sub->get_name().empty()) names.push_back(sub->get_name());  // others are groups of options
  }
  const auto words = app.remaining();
  if (names.empty() || !app.get_subcommands().empty() || words.empty() || words[0].starts_with("-"))
    return "";
  return fmt::format("unknown command '{} {}'{}", app.get_name(), words[0], did_you_mean(words[0], names));
}

/// Message for what CLI11 could not parse, and where to look.
std::vector<std::string> usage_message(const CLI::App& app, const CLI::ParseError& error) {
  const auto chosen = app.get_subcommands();
  const CLI::App& at = chosen.empty() ? app : *chosen[0];
  const std::string help = fmt::format("See twofour {}--help.", chosen.empty() ? "" : at.get_name() + " ");
  if (std::string unknown = unknown_below(at); !chosen.empty() && !unknown.empty()) return {unknown, help};
  // An unknown option explains a required one that is missing, so it is told first.
  for (const std::string& word : at.remaining(true)) {
    if (word.starts_with("-")) {
      const std::string typed = word.substr(0, word.find('='));
      return {fmt::format("unknown option {}{}", typed, did_you_mean(typed, option_names(at))), help};
    }
  }
  return {error.what(), help};
}

/// The first word that is neither an option nor a command, if it stands where a command should.
std::string unknown_command(int argc, char** argv) {
  if (argc < 2 || argv[1][0] == '-') return "";
  std::vector<std::string> names;
  for (const Command& c : kCommands) names.push_back(c.name);
  if (std::find(names.begin(), names.end(), argv[1]) != names.end()) return "";
  return fmt::format("unknown command '{}'{}", argv[1], did_you_mean(argv[1], names));
}

/// "interrupted" and, where there is something, what stays.
std::vector<std::string> lines_of(const Interrupted& e) {
  const std::string text = e.what();
  const size_t end = text.find('\n');
  if (end == text.npos) return {text};
  return {text.substr(0, end), text.substr(end + 1)};
}

int report_error(const Common& common, std::vector<std::string> lines, int code) {
  try {
    if (common.json) print_json({{"error", fmt::format("{}", fmt::join(lines, "\n"))}});
  } catch (const std::system_error&) {
    // That stdout takes nothing is told by checked().
  }
  for (std::string& line : lines) line = printable_line(line);
  tell("twofour: {}\n", Lines{fmt::format("{}", fmt::join(lines, "\n"))});
  return code;
}

/// Makes standard input, output and error something where they are closed, so that no file of a checkpoint
/// takes their numbers and gets what is told. Writing to it fails.
bool open_standard_files() {
  for (int fd = 0; fd <= 2; ++fd) {
    if (::fcntl(fd, F_GETFD) < 0 && ::open("/dev/null", O_RDONLY) != fd) return false;
  }
  return true;
}

/// Whether main() is the one that ends the program. OpenMP's runtime does where it cannot start a thread: it
/// says so and exits with 1, which would tell of findings.
bool ends_by_itself = false;

void correct_exit_code() {
  if (!ends_by_itself) ::_exit(kTrouble);
}

/// What reached stdout only in part must not count as done.
int checked(int code) {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
  tell("twofour: cannot write to standard output\n");
  return kTrouble;
}

int run(int argc, char** argv) {
  Common common;
  // Errors in the command line itself are told as --json asks, wherever it stands.
  common.json = std::find(argv + 1, argv + argc, std::string_view("--json")) != argv + argc;
  const std::string unknown = unknown_command(argc, argv);
  if (!unknown.empty()) return report_error(common, {unknown, "See twofour --help."}, kTrouble);

  CLI::App app{"Turns NVFP4 checkpoints into what kernels want to read, and proves that it did", "twofour"};
  app.set_version_flag("--version", version_text);  // asks the driver, which takes a while
  app.require_subcommand(1);
  std::map<const CLI::App*, std::pair<const Command*, std::function<int()>>> commands;
  for (const Command& c : kCommands) {
    CLI::App* sub = app.add_subcommand(c.name, c.summary);
    commands[sub] = {&c, c.setup(*sub, common)};
    add_common(*sub, common, c.cuda);
    sub->footer(footer(c, sub->get_footer()));
  }
  // Last, for commands take on the footer that stands when they are added.
  app.footer(
      "Exit codes: 0 done, 1 findings or differences (lint, diff, validate), 2 trouble, 130 interrupted.\n"
      "TWOFOUR_ISA=portable|avx2|avx512|neon forces the kernels of an instruction set.");
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& e) {
    app.exit(e);  // --help and --version
    return kDone;
  } catch (const CLI::ParseError& e) {
    return report_error(common, usage_message(app, e), kTrouble);
  }
  if (const auto name = empty_value(app))
    return report_error(common, {fmt::format("{}: expected a value, found an empty one", *name)}, kTrouble);
  if (common.jobs == 0) common.jobs = omp_get_num_procs();
  omp_set_num_threads(common.jobs);
  try {
    const auto& [command, work] = commands.at(app.get_subcommands()[0]);
    if (!command->cuda) check_device(common, command->name);
    return work();
  } catch (const Interrupted& e) {
    return report_error(common, lines_of(e), kInterrupted);
  } catch (const Error& e) {
    return report_error(common, lines_of(e), kTrouble);
  } catch (const std::bad_alloc&) {
    return report_error(common, {"out of memory"}, kTrouble);
  } catch (const std::exception& e) {
    if (std::ferror(stdout) != 0) return kTrouble;  // which checked() tells
    return report_error(common, {fmt::format("unexpected: {}", e.what())}, kTrouble);
  }
}

}  // namespace
}  // namespace twofour

int main(int argc, char** argv) {
  if (!twofour::open_standard_files()) return twofour::kTrouble;
  std::atexit(twofour::correct_exit_code);
  // A first Ctrl-C asks the run to tidy up; a second one ends the program at once.
  struct sigaction action {};
  action.sa_handler = [](int) { twofour::request_interrupt(); };
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  // A file beyond the size limit is an error of write(), not the end of the program.
  std::signal(SIGXFSZ, SIG_IGN);
  // A checkpoint of more than a thousand shards keeps them all open.
  struct rlimit files {};
  if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
  }
  const int code = twofour::checked(twofour::run(argc, argv));
  twofour::ends_by_itself = true;
  return code;
}
