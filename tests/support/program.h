#pragma once
#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace twofour {

/// How a run of the program ended and what it said.
struct Outcome {
  int code = -1;  ///< exit code; 128 + n where signal n ended it
  std::string out, err;
};

/// A run of the program that goes on beside the test.
class Run {
 public:
  /// `environment` is added to the test's own: "TWOFOUR_ISA=portable".
  explicit Run(const std::vector<std::string>& arguments, const std::vector<std::string>& environment = {});
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;
  ~Run();
  void send(int signal);
  /// True if it has not ended yet.
  bool is_running();
  /// The most memory that was resident so far, in bytes; 0 once it ended.
  uint64_t peak_memory() const;
  Outcome wait();

 private:
  pid_t pid_ = -1;
  int out_ = -1, err_ = -1;  ///< unnamed files that catch its output
  int status_ = 0;
  bool ended_ = false;
};

/// The beginning of a command line for the program: its path, behind an emulator's where it needs one.
std::vector<std::string> program_words();

/// Runs the program to its end.
Outcome run_program(const std::vector<std::string>& arguments,
                    const std::vector<std::string>& environment = {});

}  // namespace twofour
