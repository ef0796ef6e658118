#pragma once
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>

#include "lib/base/threads/progress.h"

namespace twofour {

/// The progress of a command: the values of a Progress at one time.
struct ShownProgress {
  const char* phase = "starting";
  uint64_t done = 0, total = 0;
  int64_t layer = 0, layers = 0;
  const char* part = "";
  uint64_t tokens = 0, all_tokens = 0;
};
ShownProgress shown(const Progress& progress);

/// Captures the output of a command that is called as a function. It captures the standard output of the
/// thread that made this object, and drops the thread's standard error.
class CapturedConsole {
 public:
  CapturedConsole();
  ~CapturedConsole();
  CapturedConsole(const CapturedConsole&) = delete;
  CapturedConsole& operator=(const CapturedConsole&) = delete;

  /// The CapturedConsole of this thread. Null if the thread prints to the process's standard output.
  static CapturedConsole* current();

  void write(std::string_view text) { text_ += text; }
  std::string take_text() { return std::move(text_); }
  /// Sets the Progress that progress() reports from now on. If it is null, progress() keeps reporting the
  /// last values.
  void watch(const Progress* progress);
  /// The progress of the command. Safe from any thread.
  ShownProgress progress() const;

 private:
  std::string text_;
  mutable std::mutex mutex_;
  const Progress* watched_ = nullptr;
  ShownProgress last_;
};

/// Writes to standard output or to this thread's CapturedConsole. main() reports a failed write at the end.
void write_stdout(std::string_view text);
/// Writes to standard error, or does nothing if this thread has a CapturedConsole. A failed write is ignored.
void write_stderr(std::string_view text);

}  // namespace twofour
