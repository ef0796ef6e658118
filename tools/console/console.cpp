#include "tools/console/console.h"

#include <cstdio>

namespace twofour {
namespace {

thread_local CapturedConsole* captured = nullptr;

ShownProgress shown(const Progress& progress) { return {progress.phase, progress.done, progress.total}; }

}  // namespace

CapturedConsole::CapturedConsole() { captured = this; }
CapturedConsole::~CapturedConsole() { captured = nullptr; }

CapturedConsole* CapturedConsole::current() { return captured; }

void CapturedConsole::watch(const Progress* progress) {
  const std::lock_guard lock(mutex_);
  if (watched_ != nullptr) last_ = shown(*watched_);
  watched_ = progress;
}

ShownProgress CapturedConsole::progress() const {
  const std::lock_guard lock(mutex_);
  return watched_ != nullptr ? shown(*watched_) : last_;
}

void write_stdout(std::string_view text) {
  if (captured != nullptr) {
    captured->write(text);
  } else {
    std::fwrite(text.data(), 1, text.size(), stdout);
  }
}

void write_stderr(std::string_view text) {
  if (captured == nullptr) std::fwrite(text.data(), 1, text.size(), stderr);
}

}  // namespace twofour
