#include "tests/support/program.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <stdexcept>

namespace twofour {
namespace {

int unnamed_file() {
  std::string name = (std::filesystem::temp_directory_path() / "twofour-output-XXXXXX").string();
  const int fd = ::mkstemp(name.data());
  if (fd < 0) throw std::runtime_error("cannot make " + name);
  ::unlink(name.c_str());
  return fd;
}

std::string contents(int fd) {
  std::string text(static_cast<size_t>(::lseek(fd, 0, SEEK_END)), '\0');
  const ssize_t got = ::pread(fd, text.data(), text.size(), 0);
  if (got != static_cast<ssize_t>(text.size())) throw std::runtime_error("cannot read back output");
  return text;
}

}  // namespace

std::vector<std::string> program_words() { return {TWOFOUR_EMULATOR TWOFOUR_PROGRAM}; }

Run::Run(const std::vector<std::string>& arguments, const std::vector<std::string>& environment)
    : out_(unnamed_file()), err_(unnamed_file()) {
  std::vector<std::string> program = program_words();
  std::vector<char*> argv;
  for (std::string& word : program) argv.push_back(word.data());
  for (const std::string& a : arguments) argv.push_back(const_cast<char*>(a.c_str()));
  argv.push_back(nullptr);
  std::vector<char*> env;
  for (char** e = environ; *e != nullptr; ++e) env.push_back(*e);
  for (const std::string& e : environment) env.insert(env.begin(), const_cast<char*>(e.c_str()));
  env.push_back(nullptr);
  pid_ = ::fork();
  if (pid_ < 0) throw std::runtime_error("cannot fork");
  if (pid_ == 0) {
    const int null = ::open("/dev/null", O_RDONLY);
    ::dup2(null, STDIN_FILENO);
    ::dup2(out_, STDOUT_FILENO);
    ::dup2(err_, STDERR_FILENO);
    ::execve(argv[0], argv.data(), env.data());
    ::_exit(127);
  }
}

Run::~Run() {
  if (!ended_) {
    send(SIGKILL);
    wait();
  }
  ::close(out_);
  ::close(err_);
}

void Run::send(int signal) { ::kill(pid_, signal); }

bool Run::is_running() {
  if (!ended_ && ::waitpid(pid_, &status_, WNOHANG) == pid_) ended_ = true;
  return !ended_;
}

uint64_t Run::peak_memory() const {
  // Not from wait4(), which counts what the test itself had resident when it forked.
  const std::string process = "/proc/" + std::to_string(pid_);
  std::ifstream status(process + "/status");
  for (std::string line; std::getline(status, line);) {
    if (!line.starts_with("VmHWM:")) continue;
    // Until it runs the program, it is a copy of the test.
    std::error_code error;
    if (std::filesystem::equivalent(process + "/exe", "/proc/self/exe", error)) return 0;
    return std::stoull(line.substr(6)) * 1024;
  }
  return 0;
}

Outcome Run::wait() {
  if (!ended_) {
    ::waitpid(pid_, &status_, 0);
    ended_ = true;
  }
  const int code = WIFEXITED(status_) ? WEXITSTATUS(status_) : 128 + WTERMSIG(status_);
  return {code, contents(out_), contents(err_)};
}

Outcome run_program(const std::vector<std::string>& arguments, const std::vector<std::string>& environment) {
  return Run(arguments, environment).wait();
}

}  // namespace twofour
