#pragma once
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>

#include "lib/threads/progress.h"

namespace twofour {

/// How far a command is: a phase of Progress, and bytes.
struct ShownProgress {
  const char* phase = "starting";
  uint64_t done = 0, total = 0;
};

/// Keeps what a command prints on the thread that made it, where the command is called as a function:
/// standard output as text, standard error not at all.
class CapturedConsole {
 public:
  CapturedConsole();
  ~CapturedConsole();
  CapturedConsole(const CapturedConsole&) = delete;
  CapturedConsole& operator=(const CapturedConsole&) = delete;

  /// That of this thread; nullptr where it prints to the process's standard output.
  static CapturedConsole* current();

  void write(std::string_view text) { text_ += text; }
  std::string take_text() { return std::move(text_); }
  /// The progress that progress() reports from now on; nullptr: as it was last.
  void watch(const Progress* progress);
  /// Safe from any thread.
  ShownProgress progress() const;

 private:
  std::string text_;
  mutable std::mutex mutex_;
  const Progress* watched_ = nullptr;
  ShownProgress last_;
};

/// Writes to standard output or to this thread's CapturedConsole. main() reports a failed write at the end.
void write_stdout(std::string_view text);
/// Writes to standard error, and nowhere where a CapturedConsole is. A failed write is ignored.
void write_stderr(std::string_view text);

}  // namespace twofour
