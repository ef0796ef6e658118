#include <doctest/doctest.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <set>
#include <sstream>
#include <thread>

#include "formats/json.h"
#include "formats/layouts/layouts.h"
#include "lib/base/findings/version.h"
#include "lib/synth/synth.h"
#include "tests/support/outcome.h"
#include "tests/support/program.h"
#include "tests/support/scratch.h"
#include "tests/support/terminal.h"

namespace cli_help_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;

const std::string kGolden = std::string(TWOFOUR_GOLDEN_DIR) + "/modelopt-qwen3/src";

/// The commands that the program's help lists, in its order.
std::vector<std::string> commands() {
  std::vector<std::string> found;
  const std::string help = run_program({"--help"}).out;
  std::istringstream lines(help.substr(0, help.find("\nOptions:\n")));
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("  ") && line[2] != ' ' && !line.starts_with("  twofour "))
      found.push_back(line.substr(2, line.find(' ', 2) - 2));
  }
  return found;
}

std::string help_of(const std::string& command, const char* which = "--help-all") {
  const Outcome o = run_program({command, which});
  CHECK(o.code == 0);
  CHECK(o.err.empty());
  return o.out;
}

/// An option's lines in help, blanks folded: "--tokens N Tokens to run ... (0 to 4096; default: 4)".
std::vector<std::string> options_of(const std::string& help) {
  std::vector<std::string> options;
  std::istringstream lines(help);
  for (std::string line; std::getline(lines, line);) {
    const size_t text = std::min(line.find_first_not_of(' '), line.size());
    if (text == 2 && line[2] == '-') {
      options.push_back("");
    }
    if (options.empty() || text < 2) continue;
    std::istringstream words(line);
    for (std::string word; words >> word;) options.back() += (options.back().empty() ? "" : " ") + word;
  }
  return options;
}

}  // namespace

TEST_CASE("twofour help and -V say what --help and --version say") {
  CHECK(json_of(run_program({"help", "--json"}))["text"] == run_program({"--help"}).out);
  CHECK(run_program({"help"}).out == run_program({"--help"}).out);
  for (const std::string& command : commands()) {
    CHECK(run_program({"help", command}).out == help_of(command, "--help"));
    CHECK(run_program({"help", command, "--all"}).out == help_of(command));
  }
  CHECK(run_program({"-V"}).out == run_program({"--version"}).out);
  CHECK(run_program({"-h"}).out == run_program({"--help"}).out);
  check_one_line(run_program({"help", "convrt"}), "unknown command 'convrt'; did you mean convert?");
}

TEST_CASE("help names every default") {
  // Without these options, something is not done, not chosen or not written.
  const std::set<std::string> without = {"--include", "--exclude",  "--also",
                                         "--tensor",  "--rule",     "--keep-global-scale",
                                         "--plan",    "--html",     "--against",
                                         "--at",      "--values",   "--input",
                                         "--random",  "--source",   "--tasks",
                                         "--to",      "--recipe",   "--donor",
                                         "--modules", "--experts",  "--by",
                                         "--take",    "--explain",  "--select",
                                         "--ignore",  "--baseline", "--write-baseline",
                                         "--tokens",  "--text",     "--output"};
  size_t defaults = 0;
  for (const std::string& command : commands()) {
    const std::string help = help_of(command);
    CHECK_MESSAGE(help.find("Excludes") == help.npos, help);
    for (const std::string& option : options_of(help)) {
      const size_t name = option.find("--"), end = option.find(' ', name);
      const std::string value = option.substr(end + 1, option.find(' ', end + 1) - end - 1);
      const bool takes_value =
          value[0] == '{' || std::all_of(value.begin(), value.end(),
                                         [](unsigned char c) { return std::isupper(c) || std::ispunct(c); });
      if (!takes_value || option.find("(required") != option.npos) continue;
      INFO(command, ": ", option);
      const bool named = option.find("default: ") != option.npos;
      defaults += named;
      CHECK((named || without.contains(option.substr(name, end - name))));
    }
  }
  CHECK(defaults > 40);
}

TEST_CASE("help fits a terminal and says what layouts are and what lint and validate check") {
  for (const std::string& command : commands()) {
    std::istringstream lines(help_of(command) + help_of(command, "--help"));
    for (std::string line; std::getline(lines, line);) {
      const bool words = line.find(' ', line.find_first_not_of(' ')) != line.npos;
      CHECK_MESSAGE((line.size() <= 100 || !words), line);
    }
  }
  const auto joined = [](const std::string& help) {
    std::istringstream words(help);
    std::string text;
    for (std::string word; words >> word;) text += word + " ";
    return text;
  };
  for (const char* command : {"convert", "plan"}) {
    const std::string help = joined(help_of(command));
    for_each_layout(
        [&]<class L>() { CHECK(help.find(std::string(L::name) + " " + L::summary) != help.npos); });
  }
  CHECK(joined(help_of("lint")).find("Checks that files, index and headers agree") != std::string::npos);
  CHECK(joined(help_of("validate")).find("every byte is derived again") != std::string::npos);
}

TEST_CASE("options that exclude each other, or need one of them, are named") {
  const auto usage = [](const std::vector<std::string>& words) {
    const Outcome o = run_program(words);
    CHECK(o.code == 2);
    CHECK(o.out.empty());
    return o.err.substr(0, o.err.find('\n'));
  };
  CHECK(usage({"convert", "a", "b", "--to", "v7", "--resume", "--force"}) ==
        "twofour: --force excludes --resume");
  CHECK(usage({"convert", "a", "b", "--plan", "x"}) == "twofour: SRC excludes --plan");
  CHECK(usage({"convert", "--plan", "x", "--dry-run"}) == "twofour: --dry-run excludes --plan");
  CHECK(usage({"inspect", "a", "--values", "y", "--at", "x"}) == "twofour: --at excludes --values");
  CHECK(usage({"run", "a", "--layer", "0", "-o", "y"}) ==
        "twofour: expected one of --input, --random, found none");
  CHECK(usage({"run", "a", "--layer", "0", "-o", "y", "--random", "1", "--input", "x"}) ==
        "twofour: expected one of --input, --random, found --input and --random");
  CHECK(usage({"inspect", "a", "b"}) == "twofour: expected no further argument, found b");
  CHECK(usage({"inspect", "a", "--jobs"}) == "twofour: --jobs: expected a value, found none");
  CHECK(usage({"inspect", "a", "--at", "x", "--at", "y"}) == "twofour: --at: expected once, found 2 times");
  CHECK(usage({"inspect", "a", "-j0"}) ==
        "twofour: --jobs: expected a whole number from 1 to 4096, found '0'");
  CHECK(usage({"diff", "a", "b", "--tolerance=-1"}) ==
        "twofour: --tolerance: expected a number from 0 to 1e+30, found '-1'");
  CHECK(usage({"completion", "bsh"}) ==
        "twofour: SHELL: expected bash, zsh, fish, found 'bsh'; did you mean bash?");
  CHECK(usage({}) == "twofour: expected a command, found none");
}

TEST_CASE("synth takes as few experts as its help says for each shape") {
  const Scratch scratch;
  const std::string help = help_of("synth"), out = (scratch / "out").string();
  std::string text;
  for (const std::string& option : options_of(help)) text += option.starts_with("--experts") ? option : "";
  for (const std::string& shape : synth_shapes()) {
    const int64_t least = synth_least_experts(shape);
    if (least == 0) continue;
    CHECK_MESSAGE(text.find(fmt::format("{} {}", shape, least)) != text.npos, text);
    const auto run = [&](int64_t experts) {
      return run_program({"synth", out, "--shape", shape, "--experts", std::to_string(experts), "--layers",
                          "2", "--dry-run", "-q"});
    };
    CHECK(run(least).code == 0);
    check_one_line(run(least - 1), least == 1 ? "--experts" : fmt::format("expected {} to 10000", least));
  }
}

TEST_CASE("severities and errors have colours on a terminal, unless NO_COLOR or TERM says otherwise") {
  const std::vector<std::string> wrong = {"inspect", "/nowhere"}, lint = {"lint", kGolden + "/../expect"};
  const auto coloured = [](const std::string& text) { return text.find("\033[1;31m") != text.npos; };
  CHECK(coloured(on_terminal(wrong, {"TERM=xterm"})));
  CHECK(on_terminal(wrong, {"TERM=xterm"}).find("\033[1;31mtwofour:\033[0m /nowhere: ") != std::string::npos);
  CHECK(!coloured(on_terminal(wrong, {"TERM=dumb"})));
  CHECK(!coloured(on_terminal(wrong, {"TERM=xterm", "NO_COLOR=1"})));
  CHECK(coloured(on_terminal(wrong, {"TERM=xterm", "NO_COLOR="})));
  CHECK(!coloured(run_program(wrong, {"TERM=xterm"}).err));
  const std::string linted = on_terminal(lint, {"TERM=xterm"});
  CHECK_MESSAGE(linted.find("\033[1;31merror\033[0m [") != std::string::npos, linted);
  CHECK(run_program(lint, {"TERM=xterm"}).out.find('\033') == std::string::npos);
}

TEST_CASE("overlong arguments are shown shortened") {
  const std::string word(100'000, 'x');
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{word},
                                             {"inspect", word},
                                             {"inspect", "a", "--" + word},
                                             {"inspect", "a", "--jobs", word},
                                             {"inspect", kGolden, "--at", word},
                                             {"lint", kGolden, "--rule", word + "=off"},
                                             {"convert", kGolden, "out", "--to", word},
                                             {"convert", kGolden, "out", "--to", "v7", "--include",
                                              std::string(50'000, ' ') + word.substr(50'000)}}) {
    CAPTURE(words[0].substr(0, 20));
    const Outcome o = run_program(words);
    CHECK(o.code == 2);
    CHECK(o.err.starts_with("twofour: "));
    CHECK(o.err.size() < 3000);
    CHECK_MESSAGE(o.err.find(" characters) ...") != std::string::npos, o.err);
    std::vector<std::string> as_json = words;
    as_json.push_back("--json");
    CHECK(run_program(as_json).out.size() < 4000);
  }
}

TEST_CASE("names that the system refuses are errors in our words") {
  const Scratch scratch;
  fs::create_symlink("loop", scratch / "loop");
  const std::string loop = (scratch / "loop").string(), name = (scratch / std::string(300, 'n')).string();
  for (const std::string& path : {loop, name}) {
    check_one_line(run_program({"man", path}), ": cannot look at: ");
    for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
             {"merge", path},
             {"inspect", path},
             {"lint", path},
             {"validate", path},
             {"diff", path, path},
             {"convert", kGolden, path, "--to", "v7"},
             {"synth", path, "--shape", "tiny"},
             {"plan", kGolden, (scratch / "out").string(), "--to", "v7", "-o", path},
             {"run", kGolden, "--layer", "0", "--random", "1", "-o", path}}) {
      CAPTURE(words[0]);
      const Outcome o = run_program(words);
      CHECK(o.code == 2);
      CHECK_MESSAGE(o.err.find("unexpected") == o.err.npos, o.err);
      CHECK_MESSAGE(o.err.find("filesystem error") == o.err.npos, o.err);
    }
  }
}

TEST_CASE("a hangup ends a run in our words, twice in a row, too; under nohup it goes on") {
  const Scratch scratch;
  ::signal(SIGHUP, SIG_DFL);
  const auto start = [&](const char* name) {
    return std::vector<std::string>{
        "synth", (scratch / name).string(), "--shape", "qwen3-next", "--layers", "1", "--experts", "16", "-j",
        "1"};
  };
  {
    Run run(start("hung-up"));
    while (run.is_running() && !fs::exists(scratch / "hung-up")) std::this_thread::yield();
    run.send(SIGHUP);
    run.send(SIGHUP);
    const Outcome o = run.wait();
    CHECK(o.code == 130);
    CHECK_MESSAGE(o.err.find("twofour: interrupted") != std::string::npos, o.err);
  }
  ::signal(SIGHUP, SIG_IGN);
  Run run(start("nohup"));
  ::signal(SIGHUP, SIG_DFL);
  while (run.is_running() && !fs::exists(scratch / "nohup")) std::this_thread::yield();
  run.send(SIGHUP);
  CHECK(run.wait().code == 0);
}

}  // namespace cli_help_test
